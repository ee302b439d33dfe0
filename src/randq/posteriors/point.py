"""No posterior at all: the weights of DQN, DDQN and DDPG."""

from dataclasses import dataclass

from randq.posteriors.base import Family, Init
from randq.posteriors.layerwise import Layerwise
from randq.types import Key


@dataclass(frozen=True)
class Point(Family):
    """A point estimate. Every draw is the network itself, at no cost."""

    def build(self, init: Init, key: Key) -> Layerwise:
        return Layerwise(init(key))

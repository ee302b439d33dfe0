"""How agents explore apart from the draws of a posterior: noise on actions, and on an actor."""

import math
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import jax
import jax.numpy as jnp

from randq import threefry
from randq.config import number, one_of, whole, within
from randq.networks import Linear, is_layer
from randq.noise import Supply, normals
from randq.types import Array, Float, Int32, Key, Scalar

Network = TypeVar("Network")

Unit = Literal["steps", "episodes"]


@dataclass(frozen=True)
class Epsilon:
    """The chance of a random action, falling in a straight line."""

    start: float = 1.0
    """Chance at the beginning."""
    end: float = 0.1
    """Chance after the decay."""
    decay: int = 1000
    """How long it falls."""
    unit: Unit = "episodes"
    """What the decay counts."""

    def __post_init__(self) -> None:
        within("epsilon.start", self.start, 0.0, 1.0)
        within("epsilon.end", self.end, 0.0, 1.0)
        whole("epsilon.decay", self.decay, at_least=1)
        one_of("epsilon.unit", self.unit, get_args(Unit))

    def __call__(self, steps: Int32[Array, ""], episodes: Int32[Array, ""]) -> Float[Array, ""]:
        count = steps if self.unit == "steps" else episodes
        share = jnp.clip(count.astype(jnp.float32) / self.decay, 0.0, 1.0)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class OrnsteinUhlenbeck:
    """Noise on actions that is correlated in time: dx = -theta x dt + sigma dW, from x = 0.

    It begins anew with each episode. The unit is half the width of an action's bounds.
    """

    sigma: float = 0.2
    """Size of the noise: in the long run its deviation is sigma / sqrt(2 theta)."""
    theta: float = 0.15
    """How fast it is drawn back to 0 ..."""
    dt: float = 0.01
    """... and how much time a step takes (Plappert et al. have 0.01; 1 is common elsewhere)."""

    def __post_init__(self) -> None:
        number("noise.sigma", self.sigma)
        number("noise.theta", self.theta)
        number("noise.dt", self.dt)

    def __call__(self, x: Float[Array, " n"], key: Key) -> Float[Array, " n"]:
        """The noise of the next step, by the exact transition of the process."""
        kept = math.exp(-self.theta * self.dt)
        std = self.sigma * math.sqrt((1 - kept**2) / (2 * self.theta))
        return kept * x + std * threefry.normal(key, x.shape, x.dtype)


@dataclass(frozen=True)
class ParameterNoise:
    """Noise on the weights of an actor, held for an episode (Plappert et al.).

    Its size adapts, so that the actions of a perturbed actor are a given distance from those of the
    actor itself. Layer normalisation has no noise of its own: it is what makes one size of noise
    mean about the same in every layer.
    """

    distance: float = 0.2
    """How far actions are to be moved, in half the width of their bounds (root mean square)."""
    initial_std: float = 0.2
    """Standard deviation of the noise on weights at the beginning."""
    factor: float = 1.01
    """The deviation is multiplied or divided by this, every condition_every updates."""

    def __post_init__(self) -> None:
        number("parameter_noise.distance", self.distance)
        number("parameter_noise.initial_std", self.initial_std)
        number("parameter_noise.factor", self.factor, above=1.0)

    def perturbed(self, network: Network, std: Scalar, key: Key) -> Network:
        """The network with noise on the weights and biases of all its layers."""

        def add(supply: Supply) -> Network:
            def noisy(node: object) -> object:
                if not isinstance(node, Linear):
                    return node
                return jax.tree.map(lambda x: x + std * supply.like(x), node)

            return jax.tree.map(noisy, network, is_leaf=is_layer)

        return normals(add, key, std.dtype)

    def adapted(self, std: Scalar, distance: Scalar) -> Scalar:
        """The next deviation, after one that moved actions by this distance."""
        return jnp.where(distance > self.distance, std / self.factor, std * self.factor)


@dataclass(frozen=True)
class Thompson:
    """Thompson sampling with an actor: it follows one draw of the critic for a whole episode.

    At the start of an episode an environment gets a draw of the critic, and a copy of the actor. At
    each update the copy climbs its own draw, on the same mini-batch; and it is the copy that acts.
    """

    learning_rate: float = 1e-3
    """Step size of Adam for the copy: larger than the actor's, as it has one episode's time."""

    def __post_init__(self) -> None:
        number("thompson.learning_rate", self.learning_rate)

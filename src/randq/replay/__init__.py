"""Replay memories: `ring` in the compiled loop; `transitions` and `frames` in the host loop."""

from randq.config import require
from randq.replay.base import Replay, ReplayState
from randq.replay.frames import Frames
from randq.replay.transitions import Transitions
from randq.types import Spaces, Transition


def replay_for(
    spaces: Spaces,
    example: Transition,
    capacity: int,
    num_envs: int = 1,
    n_step: int = 1,
    gamma: float = 1.0,
) -> Replay:
    """The replay that suits observations of an environment."""
    if spaces.stack:
        return Frames(capacity, example, num_envs, n_step, gamma)
    takes = "1 where an observation is not a stack of frames"
    require(n_step == 1, "n_step", n_step, takes)
    return Transitions(capacity, example, num_envs)


__all__ = ["Frames", "Replay", "ReplayState", "Transitions", "replay_for"]

"""An agent at work in an environment of Gymnasium: what the host loop calls, step by step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from randq.envs.gym.stepper import Arrived, Stepper
from randq.loops.host import Host, Memory


class Played(NamedTuple):
    """An episode of training."""

    step: int
    """Steps of the agent when it ended."""
    episode_return: float
    length: int


class Evaluation(NamedTuple):
    """How an agent did, all its randomness disabled."""

    mean: float
    std: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]


class Ended(NamedTuple):
    """An episode, at its end."""

    env: int
    """In which environment of the vector."""
    episode_return: float
    length: int


class Tally:
    """Return and length of the episode that each environment is in."""

    def __init__(self, num_envs: int) -> None:
        self.returns = [0.0] * num_envs
        self.lengths = [0] * num_envs

    def add(self, arrived: Arrived) -> list[Ended]:
        """Add a step up; the episodes that ended with it."""
        # Numbers of Python: with numpy's, each of these would take microseconds.
        rewards, taken = arrived.reward.tolist(), arrived.taken.tolist()
        terminated, truncated = arrived.terminated.tolist(), arrived.truncated.tolist()
        found = []
        for i in range(len(taken)):
            if not taken[i]:
                continue
            self.returns[i] += rewards[i]
            self.lengths[i] += 1
            if terminated[i] or truncated[i]:
                found.append(Ended(i, self.returns[i], self.lengths[i]))
                self.returns[i], self.lengths[i] = 0.0, 0
        return found


class Session:
    """A host program, an environment, and where they are."""

    def __init__(
        self, host: Host, stepper: Stepper, seed: int | None, memory: Memory | None = None
    ) -> None:
        self.host = host
        self.stepper = stepper
        self.state = host.init(0 if seed is None else seed, memory)
        self.tally = Tally(stepper.num_envs)
        self.actions: np.ndarray | None = None
        """What to do next; None if an episode must begin first."""
        self._seed = seed

    def advance(self) -> tuple[int, list[Ended]]:
        """Take a step in each environment, and learn.

        Says how many steps were taken, and which episodes ended. If it fails, the next call begins
        a new episode.
        """
        if self.actions is None:
            self.begin()
        assert self.actions is not None
        actions, self.actions = self.actions, None
        self.arrived = self.stepper.step(actions)
        self._take_in(self.arrived)
        return int(np.count_nonzero(self.arrived.taken)), self.tally.add(self.arrived)

    def begin(self) -> None:
        """Begin an episode everywhere."""
        self.tally = Tally(self.stepper.num_envs)
        self._take_in(self.stepper.reset(self._seed))
        self._seed = None

    def _take_in(self, arrived: Arrived) -> None:
        self.state, chosen = self.host.step(self.state, arrived)
        actions = np.asarray(chosen)
        if self.host.refuses(actions):
            self.host.check(self.state)
        self.actions = actions


def play(
    stepper: Stepper,
    act: Callable[[Any], Any],
    episodes: int,
    seed: int,
    watch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Play episodes with a policy that takes observations, and gives actions, as environments do.
    What watches is called after each step, and may raise an error to end it.

    They are seeded, and the environment should be used for nothing else. Each environment of a
    vector plays its share of them: the first ones to end anywhere would be the short ones.
    """
    tally = Tally(stepper.num_envs)
    left = [len(range(i, episodes, stepper.num_envs)) for i in range(stepper.num_envs)]
    found: list[Ended] = []
    arrived = stepper.reset(seed)
    while len(found) < episodes:
        seen = arrived.observation
        if stepper.spaces.categories is not None:
            seen = seen + stepper.spaces.first_category
        actions = np.asarray(act(seen))
        if not stepper.spaces.continuous:
            actions = actions - stepper.spaces.first_action
        arrived = stepper.step(actions)
        for ended in tally.add(arrived):
            if left[ended.env] > 0:
                left[ended.env] -= 1
                found.append(ended)
        watch()
    _, returns, lengths = zip(*found, strict=True)
    return Evaluation(float(np.mean(returns)), float(np.std(returns)), returns, lengths)

"""What a training loop asks of an algorithm, and what the algorithms share.

How to write an algorithm: make a frozen dataclass of settings that subclasses `Agent`, with those
that are named there, and a NamedTuple for its state. Its methods are pure functions for one run;
loops vmap them over seeds. Then add a line to `ALGORITHMS` in `agents/__init__.py`.

In the state, `draw` and `stale` are what each environment holds for itself: in a vector of them
those two have a leading axis of environments, and all else is shared. `refresh` and `act` see one
environment at a time, `stepped` and `update` may see all of them.
"""

import abc
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from randq import threefry
from randq.config import floating, number, one_of, require, whole, within
from randq.optimise import Optimiser, checked, moved
from randq.posteriors.base import Family, Function, Members, Posterior, learnt
from randq.targets import LOSSES
from randq.types import Array, Bool, Float, Int32, Key, PyTree, Scalar, Shaped, Spaces, Transition

T = TypeVar("T")

TargetNoise = Literal["mean", "same", "fresh"]
Loss = Literal["squared", "huber"]
Precision = Literal["float32", "float64"]

Count = Int32[Array, ""] | int
"""Of steps: in a program, or outside."""
Flags = Bool[Array, "*envs"] | np.ndarray
"""One for each environment: in a program, or outside."""

AgentState = Any
"""A NamedTuple: at least posterior, draw, stale, steps, episodes and updates."""


class Metrics(NamedTuple):
    """What one update has to say."""

    loss: Scalar
    cost: Scalar
    q_mean: Scalar
    q_max: Scalar
    """Greatest size of a Q-value that was learnt."""
    gradient: Scalar
    """Euclidean norm of the gradient."""


class Spread(NamedTuple):
    """How far the draws of a posterior differ."""

    q_std: Scalar
    """Standard deviation of a Q-value over draws, on average."""
    action_disagreement: Scalar
    """Share of the draws whose best action is not the most frequent one, on average; NaN where
    actions are numbers."""


LOOK = 32
"""How many observations a look at the spread takes."""


class Agent(abc.ABC):
    """An algorithm with its settings."""

    posterior: Family
    hidden: tuple[int, ...]
    precision: Precision
    gamma: float
    loss: Loss
    learning_rate: float
    adam_eps: float
    max_grad_norm: float | None
    batch_size: int
    replay_capacity: int
    learning_starts: int
    random_steps: int
    update_every: int | None
    updates_per_episode: int
    target_rate: float
    alpha: float
    cost_scale: float | None
    target_noise: TargetNoise
    condition_every: int
    condition_batch: int
    truncation_terminates: bool
    n_step: int
    reward_sign: bool

    @abc.abstractmethod
    def init(self, spaces: Spaces, key: Key) -> AgentState:
        """A new agent."""

    @abc.abstractmethod
    def refresh(self, state: AgentState, key: Key) -> AgentState:
        """Replace what an environment holds, if it is stale."""

    @abc.abstractmethod
    def act(self, state: AgentState, observation: PyTree, key: Key) -> Shaped[Array, "..."]:
        """What to do in one environment, to explore."""

    @abc.abstractmethod
    def outdates(self, steps: Count, before: Count, ended: Flags, taken: Flags) -> Flags:
        """Which environments hold what is stale after a step, the one that led from so many steps
        `before` to so many."""

    @abc.abstractmethod
    def target_due(self, steps: Count, before: Count) -> Bool[Array, ""] | bool:
        """Whether since the step `before` it has become time to move the target network."""

    @abc.abstractmethod
    def move_target(self, state: AgentState) -> AgentState:
        """Move the target network."""

    @abc.abstractmethod
    def update(self, state: AgentState, batch: Transition, key: Key) -> tuple[AgentState, Metrics]:
        """One gradient step on a mini-batch."""

    @abc.abstractmethod
    def condition(self, state: AgentState, batch: Transition) -> AgentState:
        """What is not done by gradient, every `condition_every` updates."""

    @abc.abstractmethod
    def explorer(self, state: AgentState) -> Function:
        """What `Spaces.chosen` makes an action of, to explore in one environment, less chance."""

    @abc.abstractmethod
    def evaluator(self, state: AgentState) -> Function:
        """What `Spaces.chosen` makes an action of, with all randomness disabled."""

    @abc.abstractmethod
    def query(
        self, state: AgentState, observation: PyTree, action: Float[Array, " actions"] | None
    ) -> PyTree:
        """What the value network takes: an observation, with an action where those are numbers (if
        None, the one that the agent holds to be best)."""

    @abc.abstractmethod
    def spread(self, state: AgentState, observations: PyTree, key: Key, draws: int = 10) -> Spread:
        """How far draws of the posterior differ for a batch of observations."""

    def _check(self) -> None:
        """Check the settings that all algorithms have."""
        for setting in ("batch_size", "replay_capacity", "updates_per_episode", "n_step"):
            whole(setting, getattr(self, setting), at_least=1)
        for setting in ("condition_every", "condition_batch"):
            whole(setting, getattr(self, setting), at_least=1)
        for setting in ("learning_starts", "random_steps"):
            whole(setting, getattr(self, setting), at_least=0)
        if self.update_every is not None:
            whole("update_every", self.update_every, at_least=1)
        for size in self.hidden:
            whole("hidden", size, at_least=1)
        within("gamma", self.gamma, 0.0, 1.0)
        number("target_rate", self.target_rate)
        within("target_rate", self.target_rate, 0.0, 1.0)
        number("learning_rate", self.learning_rate)
        number("adam_eps", self.adam_eps)
        if self.max_grad_norm is not None:
            number("max_grad_norm", self.max_grad_norm)
        for setting in ("alpha", "cost_scale"):
            if getattr(self, setting) is not None:
                within(setting, getattr(self, setting), 0.0, 1e9)
        one_of("loss", self.loss, get_args(Loss))
        one_of("precision", self.precision, get_args(Precision))
        floating("precision", self.precision)
        one_of("target_noise", self.target_noise, get_args(TargetNoise))
        too_small = self.batch_size > self.replay_capacity
        takes = f"at most replay_capacity = {self.replay_capacity}"
        require(not too_small, "batch_size", self.batch_size, takes)

    def stored(self, reward: Float[Array, "..."]) -> Float[Array, "..."]:
        """A reward as it goes to the replay."""
        return jnp.sign(reward) if self.reward_sign else reward

    @property
    def optimiser(self) -> Optimiser:
        """For what the posterior learns by gradient."""
        return adam(self.learning_rate, self.adam_eps, self.max_grad_norm)

    def stepped(
        self,
        state: AgentState,
        ended: Bool[Array, "*envs"],
        taken: Bool[Array, "*envs"] | bool = True,
    ) -> AgentState:
        """Count a step, or one in each of several environments, and know what it outdates.

        A step that was not `taken` does not count: a vector of environments has those.
        """
        taken = jnp.broadcast_to(jnp.asarray(taken), ended.shape)
        steps = state.steps + jnp.sum(taken, dtype=jnp.int32)
        return state._replace(
            steps=steps,
            episodes=state.episodes + jnp.sum(ended, dtype=jnp.int32),
            stale=state.stale | self.outdates(steps, state.steps, ended, taken),
        )

    def _moved(self, target: T, online: T) -> T:
        """A target closer to what it follows, or a copy of that."""
        return online if self.target_rate == 1.0 else moved(target, online, self.target_rate)

    def followed(self, posterior: Posterior) -> tuple[Posterior, Posterior]:
        """What the target network follows, and what it shares with the online one.

        A copy without noise stays the same network until the next copy, so that is what is kept. A
        target with noise, or one that is on its way, has all parameters of a posterior.
        """
        settles = self.target_noise == "mean" and self.target_rate == 1.0
        return learnt(posterior.settled() if settles else posterior)

    def _target_members(self, posterior: Posterior, target: Posterior, key: Key | None) -> Members:
        """The target network, of which `target` is what it does not share, with the noise that it
        is to have in an update with this key."""
        noise = None
        if key is not None and self.target_noise != "mean":
            noise = key if self.target_noise == "same" else threefry.fold_in(key, 1)
        return eqx.combine(target, self.followed(posterior)[1]).members(noise)

    def _total(
        self,
        taken: Float[Array, "members batch"],
        targets: Float[Array, "members batch"],
        batch: Transition,
        members: Members,
    ) -> Scalar:
        """The loss of values that were taken (eq. 19): errors of all members, and the cost."""
        errors = batch.masks.T.astype(taken.dtype) * jax.vmap(jax.vmap(LOSSES[self.loss]))(
            taken - targets
        )
        scale = self.cost_scale
        scale = self.alpha / self.replay_capacity if scale is None else scale
        return jnp.sum(jnp.mean(errors, axis=1)) + scale * members.cost


def adam(learning_rate: float, eps: float, max_grad_norm: float | None) -> Optimiser:
    """Adam that clips a long gradient, and takes no step where it or the loss is not finite."""
    return optax.chain(checked(max_grad_norm), optax.adam(learning_rate, eps=eps))

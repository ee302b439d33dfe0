"""DQN for every posterior (the paper's Algorithm 1).

MNF-DQN is `DQN(posterior=MNF())`, BBQN is `DQN(posterior=MeanField())`, and so on. An agent's state
is a pytree and its methods are pure, for one run: loops vmap them over seeds.

When a held draw is outdated it is marked *stale*, and a loop calls `refresh` before the next
action. So a draw is made once however many events ask for it.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from randq.config import floating, number, one_of, require, whole, within
from randq.exploration import Epsilon
from randq.networks import MLP, ConvNet, Network, Scaling
from randq.optimise import descend
from randq.posteriors.base import Family, Function, Members, Posterior, learnt, trainable
from randq.targets import LOSSES, q_target
from randq.types import Array, Bool, Float, Int32, Key, PyTree, Scalar, Spaces, Transition

TargetNoise = Literal["mean", "same", "fresh"]
Loss = Literal["squared", "huber"]
Precision = Literal["float32", "float64"]

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Convolutions for screens: (channels, kernel, stride)."""
SMALL = ((16, 3, 1),)
"""The convolution for images that are too small for those."""


class DQNState(NamedTuple):
    """Everything that changes in training, but for the replay."""

    posterior: Posterior
    target: Posterior
    """What of the target posterior is learnt; the rest it shares with the online one."""
    optimiser: optax.OptState
    draw: Function
    """The network that acts."""
    stale: Bool[Array, ""]
    """The draw is outdated: replace it before the next action."""
    steps: Int32[Array, ""]
    episodes: Int32[Array, ""]
    updates: Int32[Array, ""]


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
    """Share of the draws whose best action is not the most frequent one, on average."""


LOOK = 32
"""How many observations a look at the spread takes."""


@dataclass(frozen=True)
class DQN:
    """Settings of DQN. The defaults are those of the authors' n-chain experiment."""

    posterior: Family
    """Family of the posterior over the network's weights."""
    hidden: tuple[int, ...] = (16, 16)
    """Units of the hidden layers."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions before them, for images: (channels, kernel, stride); None: by the image."""
    scale_inputs: bool = False
    """Bring observations with known bounds to [-1, 1]."""
    precision: Precision = "float32"
    """Type of the weights."""
    gamma: float = 0.999
    """Discount factor."""
    double: bool = True
    """Select the next action with the learning draw (double Q-learning)."""
    loss: Loss = "huber"
    """Loss of a temporal-difference error."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    adam_eps: float = 1.5e-4
    """Epsilon of Adam."""
    max_grad_norm: float | None = 10.0
    """Largest Euclidean norm of the gradient; longer ones are scaled down."""
    batch_size: int = 32
    """Transitions in a mini-batch."""
    replay_capacity: int = 10_000
    """Transitions kept in the replay."""
    learning_starts: int = 32
    """Steps before the first update."""
    random_steps: int = 0
    """Steps at the beginning with random actions."""
    update_every: int | None = None
    """Steps between updates; None counts in episodes (updates_per_episode)."""
    updates_per_episode: int = 1
    """Updates after each episode, when update_every is None."""
    target_every: int = 100
    """Steps between updates of the target network."""
    target_rate: float = 1.0
    """How far the target moves towards the online network: 1 is a copy, less is a soft update."""
    alpha: float = 1.0
    """The cost is scaled by lambda = alpha / replay_capacity ..."""
    cost_scale: float | None = None
    """... unless lambda is given here."""
    epsilon: Epsilon | None = None
    """Epsilon-greedy exploration on top of the draw; None for none."""
    redraw_episode: bool = True
    """Redraw the acting network at the start of an episode."""
    redraw_update: bool = True
    """Redraw the acting network after an update."""
    redraw_every: int | None = None
    """Redraw the acting network every so many steps; None for never."""
    target_noise: TargetNoise = "mean"
    """Noise in the target: none (mean), that of the learning draw (same), or its own (fresh)."""
    condition_every: int = 10
    """Updates between updates in closed form, for families that have them."""
    condition_batch: int = 2048
    """Transitions that an update in closed form takes from the replay."""
    truncation_terminates: bool = False
    """Treat a time limit as the end of the world, as the authors' n-chain did."""

    def __post_init__(self) -> None:
        for setting in ("batch_size", "replay_capacity", "target_every", "updates_per_episode"):
            whole(setting, getattr(self, setting), at_least=1)
        for setting in ("condition_every", "condition_batch"):
            whole(setting, getattr(self, setting), at_least=1)
        for setting in ("learning_starts", "random_steps"):
            whole(setting, getattr(self, setting), at_least=0)
        for setting in ("update_every", "redraw_every"):
            if getattr(self, setting) is not None:
                whole(setting, getattr(self, setting), at_least=1)
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
        for convolution in self.filters or ():
            require(len(convolution) == 3, "filters", convolution, "(channels, kernel, stride)")
            for size in convolution:
                whole("filters", size, at_least=1)
        one_of("target_noise", self.target_noise, get_args(TargetNoise))
        too_small = self.batch_size > self.replay_capacity
        takes = f"at most replay_capacity = {self.replay_capacity}"
        require(not too_small, "batch_size", self.batch_size, takes)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        steps = [optax.adam(self.learning_rate, eps=self.adam_eps)]
        if self.max_grad_norm is not None:
            steps.insert(0, optax.clip_by_global_norm(self.max_grad_norm))
        steps.insert(0, optax.stateless(_finite))
        # On one long vector: with dozens of small arrays most of a program would be the optimiser.
        return optax.flatten(optax.chain(*steps))

    def init(self, spaces: Spaces, key: Key) -> DQNState:
        """A new agent."""
        posterior = self.posterior.build(lambda k: self._network(spaces, k), key)
        none = jnp.zeros((), jnp.int32)
        # Only the shapes of a draw: it is stale, hence replaced before it can act.
        draw = jax.eval_shape(lambda: posterior.sample(key).network)
        return DQNState(
            posterior=posterior,
            target=learnt(posterior)[0],
            optimiser=self.optimiser.init(trainable(posterior)[0]),
            draw=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), draw),
            stale=jnp.ones((), bool),
            steps=none,
            episodes=none,
            updates=none,
        )

    def _network(self, spaces: Spaces, key: Key) -> Network:
        shape, actions, dtype = spaces.observation_shape, spaces.num_actions, self.precision
        if len(shape) == 3:
            filters = self.filters
            if filters is None:
                filters = NATURE if sorted(shape)[1] >= 36 else SMALL
            return ConvNet.create(shape, filters, self.hidden, actions, key=key, dtype=dtype)
        features, scaling = spaces.categories or math.prod(shape), None
        if self.scale_inputs and spaces.low is not None and spaces.high is not None:
            scaling = Scaling.between(spaces.low, spaces.high)
        return MLP.create(features, self.hidden, actions, key=key, scaling=scaling, dtype=dtype)

    def refresh(self, state: DQNState, key: Key) -> DQNState:
        """Replace a stale draw."""
        new = state.posterior.sample(key).network
        draw = jax.tree.map(lambda a, b: jnp.where(state.stale, a, b), new, state.draw)
        return state._replace(draw=draw, stale=jnp.zeros((), bool))

    def act(self, state: DQNState, observation: PyTree, key: Key) -> Int32[Array, ""]:
        """The greedy action of the held draw, or with the chance epsilon a random one."""
        values = state.draw(observation)
        action = jnp.argmax(values).astype(jnp.int32)
        if self.epsilon is None and self.random_steps == 0:
            return action
        chance = jnp.zeros((), jnp.float32)
        if self.epsilon is not None:
            chance = self.epsilon(state.steps, state.episodes)
        chance = jnp.where(state.steps < self.random_steps, 1.0, chance)
        coin, choice = jax.random.uniform(key, (2,), jnp.float32)
        random = jnp.floor(choice * values.size).astype(jnp.int32)
        return jnp.where(coin < chance, random, action)

    def stepped(
        self,
        state: DQNState,
        ended: Bool[Array, "*envs"],
        taken: Bool[Array, "*envs"] | bool = True,
    ) -> DQNState:
        """Count a step, or one in each of several environments, and know which draws it outdates.

        A step that was not `taken` does not count: a vector of environments has those.
        """
        taken = jnp.broadcast_to(jnp.asarray(taken), ended.shape)
        steps = state.steps + jnp.sum(taken, dtype=jnp.int32)
        stale = state.stale
        if self.redraw_episode:
            stale = stale | ended
        if self.redraw_every is not None:
            stale = stale | (steps // self.redraw_every > state.steps // self.redraw_every)
        episodes = state.episodes + jnp.sum(ended, dtype=jnp.int32)
        return state._replace(steps=steps, episodes=episodes, stale=stale)

    def target_due(self, steps: Int32[Array, ""], before: Int32[Array, ""]) -> Bool[Array, ""]:
        """Whether since the step `before` it has become time to move the target network."""
        return steps // self.target_every > before // self.target_every

    def move_target(self, state: DQNState) -> DQNState:
        """Move the target network towards the online one, or copy it."""
        online, rate = learnt(state.posterior)[0], self.target_rate
        if rate == 1.0:
            return state._replace(target=online)
        soft = jax.tree.map(lambda new, old: old + rate * (new - old), online, state.target)
        return state._replace(target=soft)

    def update(self, state: DQNState, batch: Transition, key: Key) -> tuple[DQNState, Metrics]:
        """One gradient step on a mini-batch (eq. 19)."""
        params, rest = trainable(state.posterior)
        (loss, (cost, taken)), gradient = jax.value_and_grad(self._loss, has_aux=True)(
            params, rest, state.target, batch, key
        )
        q_max = jnp.max(jnp.abs(taken))
        # Of one long vector, as in the optimiser: a norm of dozens of arrays takes longer.
        norm = jnp.linalg.norm(ravel_pytree(gradient)[0])
        metrics = Metrics(loss, cost, jnp.mean(taken), q_max, norm)
        params, optimiser = descend(self.optimiser, gradient, params, state.optimiser)
        state = state._replace(
            posterior=eqx.combine(params, rest),
            optimiser=optimiser,
            updates=state.updates + 1,
            stale=state.stale | self.redraw_update,
        )
        return state, metrics

    def condition(self, state: DQNState, batch: Transition) -> DQNState:
        """Update what the family updates in closed form, on a large batch."""
        members = state.posterior.members(None)
        targets = self._targets(state.posterior, state.target, members, batch, None)
        posterior = state.posterior.condition(batch.observation, batch.action, targets[0])
        return state._replace(posterior=posterior)

    def evaluator(self, state: DQNState) -> Function:
        """Scores whose argmax is the action, with all randomness disabled."""
        return state.posterior.evaluator()

    def spread(self, state: DQNState, observations: PyTree, key: Key, draws: int = 10) -> Spread:
        """How far draws of the posterior differ for a batch of observations."""
        keys = jax.random.split(key, draws)
        values = jax.lax.map(
            lambda key: jax.vmap(state.posterior.sample(key).network)(observations), keys
        )
        best = jnp.argmax(values, axis=2)
        votes = jnp.mean(jax.nn.one_hot(best, values.shape[2], dtype=values.dtype), axis=0)
        disagreement = 1 - jnp.mean(jnp.max(votes, axis=1))
        # Counted from the first draw: where draws are equal, it is 0 and not a rounding error.
        return Spread(jnp.mean(jnp.std(values - values[:1], axis=0)), disagreement)

    def _loss(
        self, params: Posterior, rest: Posterior, target: Posterior, batch: Transition, key: Key
    ) -> tuple[Scalar, tuple[Scalar, Float[Array, "members batch"]]]:
        posterior = eqx.combine(params, rest)
        members = posterior.members(key)
        values = members(batch.observation)
        targets = self._targets(posterior, target, members, batch, key)
        taken = jnp.take_along_axis(values, batch.action[None, :, None], axis=2)[..., 0]
        errors = batch.masks.T.astype(taken.dtype) * jax.vmap(jax.vmap(LOSSES[self.loss]))(
            taken - targets
        )
        scale = self.cost_scale
        scale = self.alpha / self.replay_capacity if scale is None else scale
        loss = jnp.sum(jnp.mean(errors, axis=1)) + scale * members.cost
        return loss, (members.cost, taken)

    def _targets(
        self,
        posterior: Posterior,
        target: Posterior,
        members: Members,
        batch: Transition,
        key: Key | None,
    ) -> Float[Array, "members batch"]:
        noise = None
        if key is not None and self.target_noise != "mean":
            noise = key if self.target_noise == "same" else jax.random.fold_in(key, 1)
        target_members = eqx.combine(target, learnt(posterior)[1]).members(noise)
        values = target_members(batch.next_observation)
        selector = members(batch.next_observation) if self.double else values
        over_batch = jax.vmap(q_target, in_axes=(0, 0, None, 0, 0))
        over_members = jax.vmap(over_batch, in_axes=(None, None, None, 0, 0))
        return jax.lax.stop_gradient(
            over_members(batch.reward, batch.terminated, self.gamma, values, selector)
        )


def _finite(gradient: Array, params: Array | None) -> Array:
    """No gradient at all where it is not finite, so that nothing that was learnt is lost."""
    return jnp.where(jnp.all(jnp.isfinite(gradient)), gradient, 0)

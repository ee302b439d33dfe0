"""DQN for every posterior (the paper's Algorithm 1).

MNF-DQN is `DQN(posterior=MNF())`, BBQN is `DQN(posterior=MeanField())`, and so on. An agent's state
is a pytree and its methods are pure, for one run: loops vmap them over seeds.

When a held draw is outdated it is marked *stale*, and a loop calls `refresh` before the next
action. So a draw is made once however many events ask for it.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from randq import threefry
from randq.agents.base import Agent, Count, Flags, Loss, Metrics, Precision, Spread, TargetNoise
from randq.config import require, whole
from randq.exploration import Epsilon
from randq.networks import MLP, ConvNet, Network, Scaling
from randq.optimise import begin, descend, norm
from randq.posteriors.base import Family, Function, Members, Posterior, trainable
from randq.targets import q_target
from randq.types import Array, Bool, Float, Int32, Key, PyTree, Scalar, Spaces, Transition

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Convolutions for screens: (channels, kernel, stride)."""
SMALL = ((16, 3, 1),)
"""The convolution for images that are too small for those."""


class DQNState(NamedTuple):
    """Everything that changes in training, but for the replay."""

    posterior: Posterior
    target: Posterior
    """What of the target network is its own (`followed`)."""
    optimiser: optax.OptState
    draw: Function
    """The network that acts."""
    stale: Bool[Array, ""]
    """The draw is outdated: replace it before the next action."""
    steps: Int32[Array, ""]
    episodes: Int32[Array, ""]
    updates: Int32[Array, ""]


@dataclass(frozen=True)
class DQN(Agent):
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
    n_step: int = 1
    """Rewards that a target adds up before it bootstraps; more than 1 takes stacks of frames."""
    reward_sign: bool = False
    """Learn from the sign of a reward; returns are those of the rewards as they come."""

    def __post_init__(self) -> None:
        self._check()
        whole("target_every", self.target_every, at_least=1)
        if self.redraw_every is not None:
            whole("redraw_every", self.redraw_every, at_least=1)
        for convolution in self.filters or ():
            require(len(convolution) == 3, "filters", convolution, "(channels, kernel, stride)")
            for size in convolution:
                whole("filters", size, at_least=1)

    def init(self, spaces: Spaces, key: Key) -> DQNState:
        """A new agent."""
        require(
            not spaces.continuous,
            "action space",
            f"{spaces.num_actions} numbers within bounds",
            "a Discrete space (DQN chooses one of several actions)",
        )
        posterior = self.posterior.build(lambda k: self._network(spaces, k), key)
        none = jnp.zeros((), jnp.int32)
        # Only the shapes of a draw: it is stale, hence replaced before it can act.
        draw = jax.eval_shape(lambda: posterior.sample(key).network)
        return DQNState(
            posterior=posterior,
            target=self.followed(posterior)[0],
            optimiser=begin(self.optimiser, trainable(posterior)[0]),
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
        coin, choice = threefry.uniform(key, (2,), jnp.float32, 0.0, 1.0)
        random = jnp.floor(choice * values.size).astype(jnp.int32)
        return jnp.where(coin < chance, random, action)

    def outdates(self, steps: Count, before: Count, ended: Flags, taken: Flags) -> Flags:
        """The draws of episodes that ended, and all of them when it is time."""
        stale = ended & self.redraw_episode
        if self.redraw_every is not None:
            stale = stale | (steps // self.redraw_every > before // self.redraw_every)
        return stale

    def target_due(self, steps: Count, before: Count) -> Bool[Array, ""] | bool:
        """Whether since the step `before` it has become time to move the target network."""
        return steps // self.target_every > before // self.target_every

    def move_target(self, state: DQNState) -> DQNState:
        """Move the target network towards the online one, or copy it."""
        return state._replace(target=self._moved(state.target, self.followed(state.posterior)[0]))

    def update(self, state: DQNState, batch: Transition, key: Key) -> tuple[DQNState, Metrics]:
        """One gradient step on a mini-batch (eq. 19)."""
        params, rest = trainable(state.posterior)
        (loss, (cost, taken)), gradient = jax.value_and_grad(self._loss, has_aux=True)(
            params, rest, state.target, batch, key
        )
        q_max = jnp.max(jnp.abs(taken))
        metrics = Metrics(loss, cost, jnp.mean(taken), q_max, norm(gradient))
        params, optimiser = descend(self.optimiser, gradient, loss, params, state.optimiser)
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

    def explorer(self, state: DQNState) -> Function:
        """Scores of the held draw."""
        return state.draw

    def evaluator(self, state: DQNState) -> Function:
        """Scores whose argmax is the action, with all randomness disabled."""
        return state.posterior.evaluator()

    def query(
        self, state: DQNState, observation: PyTree, action: Float[Array, " actions"] | None
    ) -> PyTree:
        """The observation: the network has a value for each action."""
        require(action is None, "action", action, "None where actions are to choose from")
        return observation

    def spread(self, state: DQNState, observations: PyTree, key: Key, draws: int = 10) -> Spread:
        """How far draws of the posterior differ for a batch of observations."""
        keys = threefry.split(key, draws)
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
        return self._total(taken, targets, batch, members), (members.cost, taken)

    def _targets(
        self,
        posterior: Posterior,
        target: Posterior,
        members: Members,
        batch: Transition,
        key: Key | None,
    ) -> Float[Array, "members batch"]:
        target_members = self._target_members(posterior, target, key)
        values = target_members(batch.next_observation)
        selector = members(batch.next_observation) if self.double else values
        gamma, axis = (self.gamma, None) if batch.discount is None else (batch.discount, 0)
        over_batch = jax.vmap(q_target, in_axes=(0, 0, axis, 0, 0))
        over_members = jax.vmap(over_batch, in_axes=(None, None, None, 0, 0))
        return jax.lax.stop_gradient(
            over_members(batch.reward, batch.terminated, gamma, values, selector)
        )

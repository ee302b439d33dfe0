"""DDPG for every posterior (the paper's Algorithm 2).

MNF-DDPG is `DDPG(posterior=MNF())`, BBQN-DDPG is `DDPG(posterior=MeanField())`, and so on. The
posterior is that of the critic; the actor is deterministic. Each update makes one draw of the
critic for the whole batch: the critic learns with it, and the actor climbs it.

How it explores is one of these, and the first may be added to any other:

- `noise`: each environment adds its own Ornstein-Uhlenbeck process to the actions.
- nothing more, as the paper has it: the actor acts as it is. It follows a critic that is redrawn at
  each update, hence wanders among the policies that the posterior holds to be good.
- `parameter_noise`: at the start of an episode an environment gets a copy of the actor with noise
  on its weights, which acts until the end of it.
- `thompson`: at the start of an episode an environment gets a draw of the critic and a copy of the
  actor, which adapts to that draw while it acts.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from randq import threefry
from randq.actor_critic import Actor, Bounds, Critic, Statistics
from randq.agents.base import (
    Agent,
    Count,
    Flags,
    Loss,
    Metrics,
    Precision,
    Spread,
    TargetNoise,
    adam,
)
from randq.config import number, require
from randq.exploration import OrnsteinUhlenbeck, ParameterNoise, Thompson
from randq.optimise import Optimiser, begin, descend, norm
from randq.posteriors.base import Family, Function, Posterior, trainable
from randq.targets import bootstrapped
from randq.types import (
    Array,
    Bool,
    Float,
    Float32,
    Int32,
    Key,
    PyTree,
    Scalar,
    Shaped,
    Spaces,
    Transition,
)


class Held(NamedTuple):
    """What an environment holds to explore with; None for what the settings do not ask for."""

    begins: Bool[Array, "*envs"]
    """An episode begins: all that is held is to be replaced."""
    noise: Float[Array, "*envs actions"] | None
    """Added to actions, in units of [-1, 1]."""
    actor: Actor | None
    """Acts in place of the actor."""
    critic: Function | None
    """The draw that this actor follows ..."""
    optimiser: optax.OptState | None
    """... and the state of its own optimiser."""


class DDPGState(NamedTuple):
    """Everything that changes in training, but for the replay."""

    posterior: Posterior
    """Of the critic."""
    target: Posterior
    """What of the target critic is its own (`followed`)."""
    actor: Actor
    target_actor: Actor
    optimiser: optax.OptState
    actor_optimiser: optax.OptState
    draw: Held
    stale: Bool[Array, "*envs"]
    """What is held is outdated: replace it before the next action."""
    steps: Int32[Array, ""]
    episodes: Int32[Array, ""]
    updates: Int32[Array, ""]
    statistics: Statistics | None
    """Of observations, if they are normalised."""
    noise_std: Scalar | None
    """Standard deviation of parameter noise, which adapts ..."""
    noise_key: Key | None
    """... by noise of its own."""


class Policy(eqx.Module):
    """An observation of the environment in, an action for it out."""

    actor: Actor
    statistics: Statistics | None
    noise: Float[Array, " actions"] | None

    def __call__(self, observation: PyTree) -> Float32[Array, " actions"]:
        seen = observation if self.statistics is None else self.statistics(observation)
        unit = self.actor.unit(seen)
        if self.noise is not None:
            unit = jnp.clip(unit + self.noise, -1, 1)
        bounds = self.actor.bounds
        return bounds.within(bounds.action(unit))


@dataclass(frozen=True)
class DDPG(Agent):
    """Settings of DDPG. The defaults are those of the paper's experiment in MuJoCo."""

    posterior: Family
    """Family of the posterior over the critic's weights."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the hidden layers, of the actor and of the critic."""
    layer_norm: bool = True
    """Normalise each hidden layer before its non-linearity."""
    normalise_observations: bool = False
    """Bring observations to mean 0 and variance 1, by the statistics of all mini-batches so far."""
    precision: Precision = "float32"
    """Type of the weights."""
    gamma: float = 0.99
    """Discount factor."""
    loss: Loss = "squared"
    """Loss of a temporal-difference error."""
    learning_rate: float = 1e-3
    """Step size of Adam for the critic."""
    actor_learning_rate: float = 1e-4
    """Step size of Adam for the actor."""
    adam_eps: float = 1e-8
    """Epsilon of Adam."""
    max_grad_norm: float | None = None
    """Largest Euclidean norm of a gradient; longer ones are scaled down."""
    batch_size: int = 128
    """Transitions in a mini-batch."""
    replay_capacity: int = 100_000
    """Transitions kept in the replay."""
    learning_starts: int = 128
    """Steps before the first update."""
    random_steps: int = 0
    """Steps at the beginning with random actions."""
    update_every: int | None = 1
    """Steps between updates; None counts in episodes (updates_per_episode)."""
    updates_per_episode: int = 1
    """Updates after each episode, when update_every is None."""
    target_rate: float = 0.001
    """How far the targets move towards the online networks after each update (tau)."""
    alpha: float = 1e-6
    """The cost is scaled by lambda = alpha / replay_capacity ..."""
    cost_scale: float | None = None
    """... unless lambda is given here."""
    noise: OrnsteinUhlenbeck | None = None
    """Noise that is added to actions; None for none."""
    parameter_noise: ParameterNoise | None = None
    """Noise on the weights of the actor that acts; None for none."""
    thompson: Thompson | None = None
    """Act with an actor that is adapted to one draw of the critic per episode; None: do not."""
    target_noise: TargetNoise = "mean"
    """Noise in the target: none (mean), that of the learning draw (same), or its own (fresh)."""
    condition_every: int = 50
    """Updates between adaptations of parameter noise, and between updates in closed form."""
    condition_batch: int = 128
    """Transitions that those take from the replay."""
    truncation_terminates: bool = False
    """Treat a time limit as the end of the world."""
    n_step: int = 1
    """Rewards that a target adds up before it bootstraps; more than 1 takes stacks of frames."""
    reward_sign: bool = False
    """Learn from the sign of a reward; returns are those of the rewards as they come."""

    def __post_init__(self) -> None:
        self._check()
        require(len(self.hidden) > 0, "hidden", self.hidden, "at least one layer")
        number("actor_learning_rate", self.actor_learning_rate)
        both = self.parameter_noise is not None and self.thompson is not None
        require(not both, "thompson", self.thompson, "None where there is parameter_noise")

    @property
    def actor_optimiser(self) -> Optimiser:
        return adam(self.actor_learning_rate, self.adam_eps, self.max_grad_norm)

    @property
    def _held_optimiser(self) -> Optimiser:
        """For an actor that is adapted to a draw."""
        assert self.thompson is not None
        return adam(self.thompson.learning_rate, self.adam_eps, self.max_grad_norm)

    def init(self, spaces: Spaces, key: Key) -> DDPGState:
        """A new agent."""
        actor_key, critic_key, noise_key = threefry.split(key, 3)
        bounds, size = _bounds(spaces), spaces.categories or math.prod(spaces.observation_shape)
        vector = len(spaces.observation_shape) < 3
        shape = spaces.observation_shape
        require(vector, "observation space", shape, "a vector of numbers (DDPG sees no images)")
        counted = spaces.categories is not None and self.normalise_observations
        takes = "False where an observation is one of several"
        require(not counted, "normalise_observations", True, takes)
        settings: dict[str, Any] = {"layer_norm": self.layer_norm, "dtype": self.precision}

        actor = Actor.create(size, self.hidden, bounds, key=actor_key, **settings)
        posterior = self.posterior.build(
            lambda k: Critic.create(size, self.hidden, bounds, key=k, **settings), critic_key
        )
        statistics = noise_std = None
        if self.normalise_observations:
            statistics = Statistics.none(size, self.precision)
        if self.parameter_noise is not None:
            noise_std = jnp.full((), self.parameter_noise.initial_std, self.precision)
        none = jnp.zeros((), jnp.int32)
        return DDPGState(
            posterior=posterior,
            target=self.followed(posterior)[0],
            actor=actor,
            target_actor=actor,
            optimiser=begin(self.optimiser, trainable(posterior)[0]),
            actor_optimiser=begin(self.actor_optimiser, actor),
            draw=self._nothing_held(posterior, actor, key),
            stale=jnp.ones((), bool),
            steps=none,
            episodes=none,
            updates=none,
            statistics=statistics,
            noise_std=noise_std,
            noise_key=noise_key if self.parameter_noise is not None else None,
        )

    def _nothing_held(self, posterior: Posterior, actor: Actor, key: Key) -> Held:
        """Only the shapes of what is held: it is stale, hence replaced before it can act."""

        def shapes() -> Held:
            held = Held(jnp.zeros((), bool), None, None, None, None)
            if self.noise is not None:
                held = held._replace(noise=actor.head.bias)
            if self.parameter_noise is not None:
                held = held._replace(actor=actor)
            if self.thompson is not None:
                held = self._begun(held, posterior, actor, key)
            return held

        held = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(shapes))
        return held._replace(begins=jnp.ones((), bool))

    def refresh(self, state: DDPGState, key: Key) -> DDPGState:
        """Move the noise on, and replace what is held at the start of an episode."""
        noise_key, actor_key = threefry.split(key)
        begins, held = state.draw.begins, state.draw
        fresh = held
        if self.parameter_noise is not None:
            assert state.noise_std is not None
            actor = self.parameter_noise.perturbed(state.actor, state.noise_std, actor_key)
            fresh = held._replace(actor=actor)
        if self.thompson is not None:
            fresh = self._begun(held, state.posterior, state.actor, actor_key)
        if self.noise is not None:
            assert held.noise is not None
            fresh = fresh._replace(noise=jnp.zeros_like(held.noise))
        new: Held = _where(begins, fresh, held)
        if self.noise is not None:
            assert new.noise is not None
            new = new._replace(noise=self.noise(new.noise, noise_key))
        new = new._replace(begins=jnp.zeros((), bool))
        return state._replace(draw=_where(state.stale, new, held), stale=jnp.zeros((), bool))

    def _begun(self, held: Held, posterior: Posterior, actor: Actor, key: Key) -> Held:
        """A draw of the critic, and a copy of the actor that is to follow it."""
        critic = posterior.sample(key).network
        optimiser = begin(self._held_optimiser, actor)
        return held._replace(actor=actor, critic=critic, optimiser=optimiser)

    def act(self, state: DDPGState, observation: PyTree, key: Key) -> Float32[Array, " actions"]:
        """The action of the actor, or of the one that is held, with the noise that is held."""
        action = self.explorer(state)(observation)
        if self.random_steps == 0:
            return action
        bounds = state.actor.bounds
        unit = threefry.uniform(key, action.shape, jnp.float32, -1.0, 1.0)
        random = bounds.within(bounds.action(unit))
        return jnp.where(state.steps < self.random_steps, random, action)

    def outdates(self, steps: Count, before: Count, ended: Flags, taken: Flags) -> Flags:
        """What was held in episodes that ended, and after each step the noise on actions."""
        return ended if self.noise is None else taken

    def stepped(
        self,
        state: DDPGState,
        ended: Bool[Array, "*envs"],
        taken: Bool[Array, "*envs"] | bool = True,
    ) -> DDPGState:
        """Count a step. Its end outdates all that is held, the step itself only the noise."""
        after: DDPGState = super().stepped(state, ended, taken)
        return after._replace(draw=state.draw._replace(begins=state.draw.begins | ended))

    def target_due(self, steps: Count, before: Count) -> Bool[Array, ""] | bool:
        """Never: the targets move with each update."""
        return False

    def move_target(self, state: DDPGState) -> DDPGState:
        """Nothing: the targets move with each update."""
        return state

    def update(self, state: DDPGState, batch: Transition, key: Key) -> tuple[DDPGState, Metrics]:
        """One gradient step of the critic and one of the actor, with one draw; then the targets."""
        if state.statistics is not None:
            state = state._replace(statistics=state.statistics.merged(batch.observation))
        batch = self._normalised(state, batch)
        params, rest = trainable(state.posterior)
        (loss, (cost, taken)), gradient = jax.value_and_grad(self._loss, has_aux=True)(
            params, rest, state, batch, key
        )
        # With the same key the same draw: the weights that the critic has learnt with.
        draw = state.posterior.sample(key).network
        regret, actor_gradient = jax.value_and_grad(self._regret)(
            state.actor, draw, batch.observation
        )
        size = jnp.hypot(norm(gradient), norm(actor_gradient))
        metrics = Metrics(loss, cost, jnp.mean(taken), jnp.max(jnp.abs(taken)), size)

        params, optimiser = descend(self.optimiser, gradient, loss, params, state.optimiser)
        actor, actor_optimiser = descend(
            self.actor_optimiser, actor_gradient, regret, state.actor, state.actor_optimiser
        )
        posterior = eqx.combine(params, rest)
        state = state._replace(
            posterior=posterior,
            target=self._moved(state.target, self.followed(posterior)[0]),
            actor=actor,
            target_actor=self._moved(state.target_actor, actor),
            optimiser=optimiser,
            actor_optimiser=actor_optimiser,
            updates=state.updates + 1,
        )
        if self.thompson is not None:
            # In a vector of environments what is held has an axis of them.
            adapt = (
                jax.vmap(self._adapted, in_axes=(0, None)) if state.stale.ndim else self._adapted
            )
            state = state._replace(draw=adapt(state.draw, batch.observation))
        return state, metrics

    def _adapted(self, held: Held, observation: PyTree) -> Held:
        """What is held, after a step of its actor up its own draw."""
        assert held.actor is not None
        assert held.critic is not None
        regret, gradient = jax.value_and_grad(self._regret)(held.actor, held.critic, observation)
        actor, optimiser = descend(
            self._held_optimiser, gradient, regret, held.actor, held.optimiser
        )
        return held._replace(actor=actor, optimiser=optimiser)

    def condition(self, state: DDPGState, batch: Transition) -> DDPGState:
        """Update what the family updates in closed form, and adapt the size of parameter noise."""
        batch = self._normalised(state, batch)
        targets = self._targets(state.posterior, state, batch, None)
        pairs = (batch.observation, batch.action)
        outputs = jnp.zeros(batch.reward.shape, jnp.int32)
        posterior = state.posterior.condition(pairs, outputs, targets[0])
        state = state._replace(posterior=posterior)
        if self.parameter_noise is None:
            return state
        assert state.noise_std is not None
        assert state.noise_key is not None
        key = threefry.fold_in(state.noise_key, state.updates)
        perturbed = self.parameter_noise.perturbed(state.actor, state.noise_std, key)
        moved = jax.vmap(lambda x: perturbed.unit(x) - state.actor.unit(x))(batch.observation)
        distance = jnp.sqrt(jnp.mean(moved**2))
        return state._replace(noise_std=self.parameter_noise.adapted(state.noise_std, distance))

    def explorer(self, state: DDPGState) -> Policy:
        """The actor, or the one that is held, with the noise that is held."""
        actor = state.actor if state.draw.actor is None else state.draw.actor
        return Policy(actor, state.statistics, state.draw.noise)

    def evaluator(self, state: DDPGState) -> Policy:
        """The actor, without noise."""
        return Policy(state.actor, state.statistics, None)

    def query(
        self, state: DDPGState, observation: PyTree, action: Float[Array, " actions"] | None
    ) -> PyTree:
        """The observation, normalised if they are, and the action, or else the actor's."""
        seen = observation if state.statistics is None else state.statistics(observation)
        return seen, state.actor(seen) if action is None else action

    def spread(self, state: DDPGState, observations: PyTree, key: Key, draws: int = 10) -> Spread:
        """How far draws of the critic differ about the actor's actions."""
        pairs = jax.vmap(lambda x: self.query(state, x, None))(observations)
        keys = threefry.split(key, draws)
        values = jax.lax.map(lambda key: jax.vmap(state.posterior.sample(key).network)(pairs), keys)
        # Counted from the first draw: where draws are equal, it is 0 and not a rounding error.
        q_std = jnp.mean(jnp.std(values - values[:1], axis=0))
        return Spread(q_std, jnp.full_like(q_std, jnp.nan))

    def _normalised(self, state: DDPGState, batch: Transition) -> Transition:
        if state.statistics is None:
            return batch
        normalise = jax.vmap(state.statistics)
        return batch._replace(
            observation=normalise(batch.observation),
            next_observation=normalise(batch.next_observation),
        )

    def _loss(
        self, params: Posterior, rest: Posterior, state: DDPGState, batch: Transition, key: Key
    ) -> tuple[Scalar, tuple[Scalar, Float[Array, "members batch"]]]:
        posterior = eqx.combine(params, rest)
        members = posterior.members(key)
        taken = members((batch.observation, batch.action))[..., 0]
        targets = self._targets(posterior, state, batch, key)
        return self._total(taken, targets, batch, members), (members.cost, taken)

    def _regret(self, actor: Actor, critic: Function, observation: PyTree) -> Scalar:
        """Minus what a draw of the critic thinks of an actor: its gradient is the paper's sampled
        policy gradient, downwards."""
        actions: Shaped[Array, "batch actions"] = jax.vmap(actor)(observation)
        return -jnp.mean(jax.vmap(critic)((observation, actions)))

    def _targets(
        self, posterior: Posterior, state: DDPGState, batch: Transition, key: Key | None
    ) -> Float[Array, "members batch"]:
        actions = jax.vmap(state.target_actor)(batch.next_observation)
        members = self._target_members(posterior, state.target, key)
        values = members((batch.next_observation, actions))[..., 0]
        gamma, axis = (self.gamma, None) if batch.discount is None else (batch.discount, 0)
        over_batch = jax.vmap(bootstrapped, in_axes=(0, 0, axis, 0))
        over_members = jax.vmap(over_batch, in_axes=(None, None, None, 0))
        return jax.lax.stop_gradient(over_members(batch.reward, batch.terminated, gamma, values))


def _bounds(spaces: Spaces) -> Bounds:
    require(
        spaces.continuous,
        "action space",
        f"one of {spaces.num_actions} actions",
        "a Box (DDPG chooses numbers within bounds)",
    )
    assert spaces.action_low is not None
    assert spaces.action_high is not None
    return Bounds(spaces.action_low, spaces.action_high)


def _where(condition: Bool[Array, ""], a: Held, b: Held) -> Held:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)

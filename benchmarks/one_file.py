"""DQN and DDPG the way CleanRL's JAX scripts go about them, which are files to copy and no package.

Written anew from the same parts, with the same calls in each step: networks of flax without layer
normalisation, optax, the replay of stable-baselines3, a vector of one environment, one compiled
call to act and one (DDPG: two) to learn. What the scripts log is left out.
"""

import time
from collections.abc import Callable
from typing import Any

from contest import Found, Play

STARTS = 500
"""Steps before the first update."""


def dqn(env_id: str, batch: int = 64, target_every: int = 500, gamma: float = 0.99) -> Play:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    world = _World(env_id, 50_000)
    network = _network(world.env.single_action_space.n)
    learner = _learner(network, 2.5e-4, jnp.asarray(world.observation))
    act = jax.jit(network.apply)
    chance = np.random.default_rng(0)

    @jax.jit
    def update(learner: Any, seen: Any, action: Any, then: Any, reward: Any, done: Any) -> Any:
        best = network.apply(learner.target, then).max(axis=-1)
        goal = reward + (1 - done) * gamma * best

        def loss(params: Any) -> Any:
            values = network.apply(params, seen)
            return jnp.mean((values[jnp.arange(batch), action[:, 0]] - goal) ** 2)

        return learner.apply_gradients(grads=jax.grad(loss)(learner.params))

    def step(n: int) -> None:
        nonlocal learner
        if chance.random() < max(0.05, 1 - n / 5_000):
            actions = np.array([world.env.single_action_space.sample()])
        else:
            actions = np.asarray(act(learner.params, world.observation).argmax(axis=-1))
        world.step(actions)
        if n > STARTS:
            learner = update(learner, *world.sample(batch))
            if n % target_every == 0:
                moved = optax.incremental_update(learner.params, learner.target, 1.0)
                learner = learner.replace(target=moved)

    return _play(step, lambda: learner)


def ddpg(env_id: str, batch: int = 128, tau: float = 0.001, gamma: float = 0.99) -> Play:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    world = _World(env_id, 100_000)
    size = world.env.single_action_space.shape[0]
    policy, values = _network(size), _network(1)
    seen = jnp.asarray(world.observation)
    actor = _learner(policy, 1e-4, seen)
    critic = _learner(values, 1e-3, jnp.concatenate([seen, jnp.zeros((1, size))], axis=-1))
    chance = np.random.default_rng(0)

    def act(params: Any, seen: Any) -> Any:
        return jnp.tanh(policy.apply(params, seen))

    def q(params: Any, seen: Any, action: Any) -> Any:
        return values.apply(params, jnp.concatenate([seen, action], axis=-1))[:, 0]

    acts = jax.jit(act)

    @jax.jit
    def judge(
        actor: Any, critic: Any, seen: Any, action: Any, then: Any, reward: Any, done: Any
    ) -> Any:
        goal = reward + (1 - done) * gamma * q(critic.target, then, act(actor.target, then))
        grads = jax.grad(lambda params: jnp.mean((q(params, seen, action) - goal) ** 2))(
            critic.params
        )
        return critic.apply_gradients(grads=grads)

    @jax.jit
    def improve(actor: Any, critic: Any, seen: Any) -> Any:
        grads = jax.grad(lambda params: -jnp.mean(q(critic.params, seen, act(params, seen))))(
            actor.params
        )
        actor = actor.apply_gradients(grads=grads)
        return [
            x.replace(target=optax.incremental_update(x.params, x.target, tau))
            for x in (actor, critic)
        ]

    def step(n: int) -> None:
        nonlocal actor, critic
        if n < STARTS:
            actions = world.env.action_space.sample()
        else:
            noise = chance.normal(0, 0.1, size)
            actions = (np.asarray(acts(actor.params, world.observation)) + noise).clip(-1, 1)
        world.step(actions)
        if n > STARTS:
            sampled = world.sample(batch)
            critic = judge(actor, critic, *sampled)
            actor, critic = improve(actor, critic, sampled[0])

    return _play(step, lambda: (actor, critic))


class _World:
    """A vector of one environment, and what was seen of it."""

    def __init__(self, env_id: str, capacity: int) -> None:
        import gymnasium
        import numpy as np
        from stable_baselines3.common.buffers import ReplayBuffer

        def make() -> Any:
            return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(env_id))

        self.env = gymnasium.vector.SyncVectorEnv([make])
        self.env.single_observation_space.dtype = np.dtype(np.float32)
        self.observation, _ = self.env.reset(seed=0)
        spaces = self.env.single_observation_space, self.env.single_action_space
        self.replay = ReplayBuffer(capacity, *spaces, "cpu", handle_timeout_termination=False)

    def step(self, actions: Any) -> None:
        then, reward, terminated, _, info = self.env.step(actions)
        self.replay.add(self.observation, then.copy(), actions, reward, terminated, info)
        self.observation = then

    def sample(self, batch: int) -> tuple[Any, ...]:
        """Observations, actions, next observations, rewards and ends."""
        found = self.replay.sample(batch)
        flat = found.rewards.numpy()[:, 0], found.dones.numpy()[:, 0]
        return (
            found.observations.numpy(),
            found.actions.numpy(),
            found.next_observations.numpy(),
            *flat,
        )


def _network(size: int) -> Any:
    """Two layers of 64 units."""
    import flax.linen as nn

    return nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(size)])


def _learner(network: Any, rate: float, example: Any) -> Any:
    import flax
    import jax
    import optax
    from flax.training.train_state import TrainState

    class Learner(TrainState):  # type: ignore[misc, no-untyped-call]
        target: flax.core.FrozenDict  # type: ignore[type-arg]

    params = network.init(jax.random.key(0), example)
    return Learner.create(apply_fn=network.apply, params=params, target=params, tx=optax.adam(rate))


def _play(step: Callable[[int], None], state: Callable[[], Any]) -> Play:
    import jax

    taken = 0

    def play(steps: int) -> Found:
        nonlocal taken
        start = time.perf_counter()
        for _ in range(steps):
            step(taken)
            taken += 1
        jax.block_until_ready(state())
        return {"speed": steps / (time.perf_counter() - start)}

    return play

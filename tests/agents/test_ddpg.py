"""DDPG, cell by cell: which draw learns, acts, is the target; and how each option explores."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tape import ONLINE, TARGET, Tape, taped

from randq.agents.ddpg import DDPG
from randq.agents.dqn import DQN
from randq.exploration import OrnsteinUhlenbeck, ParameterNoise, Thompson
from randq.posteriors import MNF, BayesLinear, Bootstrap, MeanField, Noisy, Point, learnt
from randq.presets import CONTINUOUS
from randq.types import Spaces, Transition

FEATURES, BATCH, GAMMA = 3, 24, 0.75
LOW, HIGH = (-1.0, 0.5), (3.0, 0.75)
SPACES = Spaces((FEATURES,), 2, action_low=LOW, action_high=HIGH)
# Lambda is 5 / 50, so that a forgotten cost, or one scaled otherwise, shows.
SMALL = {
    "hidden": (5, 4),
    "gamma": GAMMA,
    "batch_size": BATCH,
    "replay_capacity": 50,
    "alpha": 5.0,
    "target_rate": 0.1,
}
LAMBDA = 0.1
FAST = {"xla_backend_optimization_level": 0}
RANDOM = ("noisy-ddpg", "bbqn-ddpg", "mnf-ddpg")


@pytest.fixture(params=CONTINUOUS, scope="module")  # so that tests of one preset stand together
def name(request):
    return request.param


def shaken(tree, key, size=0.4):
    """Other values of all numbers, so that no weight is zero and no two are equal."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    leaves = [
        x + size * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def a_batch(members, key, dtype=jnp.float32):
    keys = jax.random.split(key, 5)
    unit = jax.random.uniform(keys[4], (BATCH, 2), jnp.float32, -1.0, 1.0)
    return Transition(
        observation=2 * jax.random.normal(keys[0], (BATCH, FEATURES), jnp.float32),
        action=jnp.float32([[1.0, 0.625]]) + jnp.float32([[2.0, 0.125]]) * unit,
        reward=2 * jax.random.normal(keys[1], (BATCH,), jnp.float32),
        next_observation=2 * jax.random.normal(keys[2], (BATCH, FEATURES), jnp.float32),
        terminated=jnp.arange(BATCH) % 4 == 1,
        masks=jax.random.bernoulli(keys[3], 0.6, (BATCH, members)).astype(dtype),
    )


def a_state(agent, key):
    """A state in which online and target networks differ, and which holds what it acts with."""
    keys = jax.random.split(key, 5)
    state = agent.init(SPACES, keys[0])
    changing, rest = learnt(state.posterior)
    posterior = eqx.combine(shaken(changing, keys[1]), rest)
    target = shaken(changing, keys[2])
    if hasattr(posterior, "who"):
        posterior = eqx.tree_at(lambda p: p.who.tree, posterior, jnp.float32(ONLINE))
        target = eqx.tree_at(lambda p: p.who.tree, target, jnp.float32(TARGET))
    return state._replace(
        posterior=posterior,
        target=target,
        actor=shaken(state.actor, keys[3]),
        target_actor=shaken(state.actor, keys[4]),
    )


@functools.cache
def facts(name):
    agent = replace(CONTINUOUS[name], **SMALL)
    agent = replace(agent, posterior=Tape(agent.posterior))
    script = {}

    def compute(key):
        keys = jax.random.split(key, 5)
        state = a_state(agent, keys[0])
        online, batch = state.posterior, a_batch(state.posterior.num_members, keys[1])
        state = agent.refresh(state, keys[2])
        (updated, metrics), on_update = taped(lambda: agent.update(state, batch, keys[3]))
        _, on_act = taped(lambda: agent.act(state, batch.observation[0], keys[4]))
        _, on_evaluation = taped(lambda: agent.evaluator(state)(batch.observation[0]))
        script["update"] = [what for what, _, _ in on_update]
        script["act"] = [what for what, _, _ in on_act + on_evaluation]
        script["noise"] = [key is not None for _, _, key in on_update]

        members = online.inner.members(keys[3])
        whole = eqx.combine(state.target, learnt(online)[1]).inner
        target_key = on_update[1][2]
        following = jax.vmap(state.target_actor)(batch.next_observation)
        return {
            "batch": batch,
            "metrics": metrics,
            "state": state,
            "updated": updated,
            "who": [who for _, who, _ in on_update],
            "keys": [jax.random.key_data(k) for _, _, k in on_update if k is not None],
            "key": jax.random.key_data(keys[3]),
            "taken": members((batch.observation, batch.action))[..., 0],
            "one network": jax.vmap(online.inner.sample(keys[3]).network)(
                (batch.observation, batch.action)
            )[:, 0],
            "mean": jax.vmap(online.inner.mean())((batch.observation, batch.action))[:, 0],
            "future": whole.members(target_key)((batch.next_observation, following))[..., 0],
            "mean future": whole.members(None)((batch.next_observation, following))[..., 0],
            "cost": members.cost,
        }

    return script, jax.device_get(jax.jit(compute, compiler_options=FAST)(jax.random.key(2)))


def same(a, b, **tolerance):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


def differ(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any(not np.allclose(x, y, atol=1e-4) for x, y in pairs)


# --- who uses which draw -----------------------------------------------------------------------


def test_one_draw_of_the_updates_key_for_the_critic_and_the_actor(name):
    script, fact = facts(name)
    # The critic's members, those of the target, and the draw that the actor climbs.
    assert script["update"] == ["members", "members", "sample"]
    assert fact["who"] == [ONLINE, TARGET, ONLINE]
    np.testing.assert_array_equal(fact["keys"][0], fact["key"])
    np.testing.assert_array_equal(fact["keys"][-1], fact["key"])


@pytest.mark.parametrize("name", RANDOM, indirect=True)
def test_the_draw_is_the_same_over_the_batch(name):
    _, fact = facts(name)
    same(fact["taken"][0], fact["one network"])
    assert differ(fact["taken"][0], fact["mean"])


def test_the_target_is_the_mean_but_for_noisy_networks(name):
    script, fact = facts(name)
    fresh = name == "noisy-ddpg"
    assert script["noise"] == [True, fresh, True]
    assert differ(fact["future"], fact["mean future"]) == fresh
    if fresh:
        assert (fact["keys"][0] != fact["keys"][1]).any()


def test_the_loss_is_the_one_written_out_by_hand(name):
    _, fact = facts(name)
    batch, total = fact["batch"], 0.0
    for m in range(fact["taken"].shape[0]):
        for i in range(BATCH):
            future = 0.0 if batch.terminated[i] else fact["future"][m, i]
            error = fact["taken"][m, i] - batch.reward[i] - GAMMA * future
            total += batch.masks[i, m] * error**2 / BATCH
    total += LAMBDA * fact["cost"]
    assert fact["metrics"].loss == pytest.approx(total, rel=1e-4)
    assert fact["metrics"].q_mean == pytest.approx(fact["taken"].mean(), rel=1e-4, abs=1e-5)
    assert fact["metrics"].q_max == pytest.approx(np.abs(fact["taken"]).max(), rel=1e-4)
    assert (fact["cost"] != 0) == (name in ("bbqn-ddpg", "mnf-ddpg"))


def test_neither_acting_nor_evaluation_asks_the_posterior(name):
    script, _ = facts(name)
    assert script["act"] == []


def test_the_targets_follow_each_update(name):
    _, fact = facts(name)
    before, after = fact["state"], fact["updated"]
    online = learnt(after.posterior)[0]
    move = lambda old, new: 0.9 * old + 0.1 * new  # noqa: E731
    same(after.target_actor, jax.tree.map(move, before.target_actor, after.actor))
    same(after.target.inner, jax.tree.map(move, before.target, online).inner)
    assert after.updates == 1
    assert (after.actor.head.bias != before.actor.head.bias).all()
    agent = CONTINUOUS[name]
    assert not agent.target_due(jnp.int32(10), jnp.int32(0))


# --- the actor's gradient ----------------------------------------------------------------------


def by_hand(network, x, joining=None):
    """Linear, layer norm, ReLU, ..., linear, in NumPy; the action joins at the second layer."""
    for i, block in enumerate(network.blocks):
        x = np.concatenate([x, joining], axis=1) if joining is not None and i == 1 else x
        x = x @ block.linear.weight + block.linear.bias
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        x = np.maximum(x * block.norm.scale + block.norm.shift, 0)
    return x @ network.head.weight + network.head.bias


@pytest.mark.parametrize("family", [Point(), MNF(), Bootstrap(heads=3)], ids=repr)
def test_the_actors_gradient_is_that_of_finite_differences(family, x64):
    """Of the mean value that the update's own draw gives to the actor's actions."""
    agent = DDPG(posterior=family, precision="float64", **SMALL)
    key = jax.random.key(5)

    @functools.partial(jax.jit, compiler_options=FAST)
    def compute():
        state = a_state(agent, jax.random.key(3))
        batch = a_batch(state.posterior.num_members, jax.random.key(4), jnp.float64)
        updated, _ = agent.update(state, batch, key)
        return state.actor, state.posterior.sample(key).network, batch.observation, updated

    actor, critic, seen, updated = jax.device_get(compute())
    leaves, structure = jax.tree.flatten(actor)

    def value(leaves):
        unit = np.tanh(by_hand(jax.tree.unflatten(structure, leaves), seen))
        return by_hand(critic, seen, joining=unit).mean()

    expected = []
    for i, leaf in enumerate(leaves):
        for j in range(leaf.size):
            moved = []
            for step in (1e-6, -1e-6):
                other = [x.astype(np.float64).copy() for x in leaves]
                other[i].flat[j] += step
                moved.append(value(other))
            expected.append((moved[0] - moved[1]) / 2e-6)
    # After one step of Adam, its first moment is a tenth of the gradient, all in one vector; and
    # what is minimised is minus the value.
    [moment] = optax.tree_utils.tree_get(updated.actor_optimiser, "mu")
    found = -10 * np.asarray(moment)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert np.abs(expected).max() > 1e-3
    # And Adam's first step is its learning rate long, upwards.
    flat = [np.concatenate([x.ravel() for x in jax.tree.leaves(t)]) for t in (actor, updated.actor)]
    large = np.abs(expected) > 1e-4
    assert large.sum() > 10
    np.testing.assert_allclose(
        (flat[1] - flat[0])[large], 1e-4 * np.sign(expected)[large], rtol=1e-3
    )


def test_the_critic_learns_nothing_from_the_actors_loss():
    """With an agent that has no actor to speak of, its critic learns the same."""

    @functools.partial(jax.jit, compiler_options=FAST)
    def moments():
        found = []
        for rate in (1e-4, 1e-1):
            agent = DDPG(posterior=MeanField(), actor_learning_rate=rate, **SMALL)
            state = a_state(agent, jax.random.key(0))
            updated, _ = agent.update(state, a_batch(1, jax.random.key(1)), jax.random.key(2))
            found.append(learnt(updated.posterior)[0])
        return found

    same(*moments(), rtol=0, atol=0)


def test_a_closed_form_is_used_for_critics_that_have_one():
    agent = DDPG(posterior=BayesLinear(), **SMALL)

    @functools.partial(jax.jit, compiler_options=FAST)
    def compute():
        state = a_state(agent, jax.random.key(0))
        # The last layer must stay a posterior.
        fresh = agent.init(SPACES, jax.random.key(0))
        state = state._replace(posterior=fresh.posterior, target=learnt(fresh.posterior)[0])
        batch = a_batch(1, jax.random.key(1))
        conditioned = agent.condition(state, batch)
        features = jax.vmap(state.posterior.torso.features)((batch.observation, batch.action))
        return features, batch, conditioned.posterior.last.tree

    features, batch, last = jax.device_get(compute())
    # The mean of the target is zero everywhere, so that the targets are the rewards.
    x = np.concatenate([features, np.ones((BATCH, 1))], axis=1).astype(np.float64)
    gram = np.eye(x.shape[1]) + x.T @ x
    np.testing.assert_allclose(last.mean[0], np.linalg.solve(gram, x.T @ batch.reward), rtol=1e-3)


# --- acting ------------------------------------------------------------------------------------


@functools.cache
def program(agent):
    functions = ("init", "refresh", "act", "stepped", "update", "condition")
    made = {
        name: jax.jit(getattr(agent, name), static_argnums=0 if name == "init" else ())
        for name in functions
    }
    return SimpleNamespace(agent=agent, **made)


PLAIN = DDPG(posterior=Point(), **SMALL)
YES, NO = jnp.ones((), bool), jnp.zeros((), bool)


def begun(agent, seed=0):
    p = program(agent)
    state = p.init(SPACES, jax.random.key(seed))
    state = state._replace(actor=shaken(state.actor, jax.random.key(seed + 50)))
    return p, p.refresh(state, jax.random.key(seed + 1))


def test_as_written_the_actor_acts_as_it_is():
    p, state = begun(replace(PLAIN, posterior=MNF()))
    x = jnp.array([0.3, -1.0, 2.0])
    action = p.act(state, x, jax.random.key(0))
    np.testing.assert_allclose(action, state.actor(x), rtol=1e-5)
    np.testing.assert_array_equal(action, p.act(state, x, jax.random.key(1)))
    np.testing.assert_allclose(action, p.agent.evaluator(state)(x), rtol=1e-5)
    # It changes because the critic is redrawn at each update: two keys lead to two actors.
    batch = a_batch(1, jax.random.key(1))
    after = [p.update(state, batch, jax.random.key(k))[0] for k in (0, 1)]
    changed = [jax.tree.map(lambda a, b: np.asarray(a - b), s.actor, state.actor) for s in after]
    signs = [np.sign(np.concatenate([x.ravel() for x in jax.tree.leaves(c)])) for c in changed]
    assert np.mean(signs[0] != signs[1]) > 0.02
    # Nothing is ever outdated, so that no draw is made for acting.
    assert not p.stepped(state, NO).stale


def test_noise_is_added_in_units_and_stays_within_bounds():
    p, state = begun(replace(PLAIN, noise=OrnsteinUhlenbeck(sigma=2.0, dt=1.0)))
    seen, actions, units = jnp.array([0.3, -1.0, 2.0]), [], []
    for t in range(60):
        actions.append(np.asarray(p.act(state, seen, jax.random.key(0))))
        units.append(np.asarray(state.actor.unit(seen) + state.draw.noise))
        state = p.refresh(p.stepped(state, NO), jax.random.key(t))
    actions = np.array(actions)
    assert actions.dtype == np.float32
    expected = np.array([1.0, 0.625]) + np.array([2.0, 0.125]) * np.clip(units, -1, 1)
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)
    for i in range(2):
        assert actions[:, i].min() == np.float32(LOW[i])
        assert actions[:, i].max() == np.float32(HIGH[i])
    np.testing.assert_allclose(p.agent.evaluator(state)(seen), state.actor(seen), rtol=1e-5)


def test_noise_moves_with_each_step_and_begins_anew_with_an_episode():
    noise = OrnsteinUhlenbeck(sigma=1.0, dt=1.0)
    p, state = begun(replace(PLAIN, noise=noise))
    kept = np.exp(-noise.theta)
    std = noise.sigma * np.sqrt((1 - kept**2) / (2 * noise.theta))
    key = jax.random.key(9)

    def fresh(state, ended):
        """What the key adds: the next noise is this, and a share of what was before."""
        after = p.stepped(state, ended)
        assert after.stale
        after = p.refresh(after, key)
        assert not after.stale
        assert not after.draw.begins
        return np.asarray(after.draw.noise)

    before = np.asarray(state.draw.noise)
    assert (np.abs(before) < 5 * std).all()
    assert (before != 0).all()
    added = fresh(state, YES)
    np.testing.assert_allclose(fresh(state, NO), added + kept * before, rtol=1e-5)
    # Refreshed without a step, it stays.
    np.testing.assert_array_equal(p.refresh(state, key).draw.noise, before)


def test_in_a_vector_each_environment_has_noise_of_its_own():
    """As the host loop does it: what is held has an axis of environments, and all else none."""
    agent = replace(PLAIN, noise=OrnsteinUhlenbeck(dt=1.0))
    state = agent.init(SPACES, jax.random.key(0))
    wide = lambda x: jnp.broadcast_to(x, (4, *x.shape))  # noqa: E731
    state = state._replace(draw=jax.tree.map(wide, state.draw), stale=wide(state.stale))
    axes = state._replace(**dict.fromkeys(state._fields))._replace(draw=0, stale=0)
    refresh = jax.jit(jax.vmap(agent.refresh, in_axes=(axes, 0), out_axes=axes))
    state = refresh(state, jax.random.split(jax.random.key(1), 4))
    before = np.asarray(state.draw.noise)
    assert np.unique(before).size == 8
    ended, taken = jnp.array([False, True, False, False]), jnp.array([True, True, True, False])
    state = agent.stepped(state, ended, taken)
    np.testing.assert_array_equal(state.stale, taken)
    np.testing.assert_array_equal(state.draw.begins, ended)
    assert int(state.steps) == 3
    assert int(state.episodes) == 1
    after = np.asarray(refresh(state, jax.random.split(jax.random.key(2), 4)).draw.noise)
    changed = (after != before).all(axis=1)
    np.testing.assert_array_equal(changed, taken)


def test_random_steps_come_first_and_fill_the_box():
    agent = replace(PLAIN, random_steps=7)
    state = agent.init(SPACES, jax.random.key(0))
    act = jax.jit(jax.vmap(agent.act, in_axes=(None, None, 0)))
    keys, x = jax.random.split(jax.random.key(1), 4000), jnp.ones(FEATURES)
    actions = np.asarray(act(state._replace(steps=jnp.int32(6)), x, keys))
    for i in range(2):
        width = HIGH[i] - LOW[i]
        assert actions[:, i].min() >= np.float32(LOW[i])
        assert actions[:, i].max() <= np.float32(HIGH[i])
        assert actions[:, i].min() < LOW[i] + 0.01 * width
        assert actions[:, i].max() > HIGH[i] - 0.01 * width
        assert actions[:, i].mean() == pytest.approx((LOW[i] + HIGH[i]) / 2, abs=0.03 * width)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.06
    after = np.asarray(act(state._replace(steps=jnp.int32(7)), x, keys))
    assert (after == after[0]).all()


# --- parameter noise ---------------------------------------------------------------------------


def test_parameter_noise_is_held_for_an_episode():
    p, state = begun(replace(PLAIN, parameter_noise=ParameterNoise(initial_std=0.3)))
    x = jnp.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose(
        p.act(state, x, jax.random.key(0)), state.draw.actor(x), rtol=1e-5, atol=1e-6
    )
    assert differ(state.draw.actor, state.actor)
    going_on = p.stepped(state, NO)
    assert not going_on.stale
    updated, _ = p.update(going_on, a_batch(1, jax.random.key(1)), jax.random.key(2))
    assert not updated.stale, "an update does not change what acts"
    over = p.stepped(updated, YES)
    assert over.stale
    renewed = p.refresh(over, jax.random.key(3))
    distance = jax.tree.map(lambda a, b: np.asarray(a - b), renewed.draw.actor, updated.actor)
    weights = np.concatenate([np.ravel(b.linear.weight) for b in distance.blocks])
    assert weights.std() == pytest.approx(0.3, rel=0.5), "around the newest actor"
    assert differ(renewed.draw.actor, state.draw.actor)
    np.testing.assert_allclose(p.agent.evaluator(state)(x), state.actor(x), rtol=1e-5)


@pytest.mark.parametrize("initial", [0.01, 5.0])
def test_parameter_noise_adapts_until_actions_are_as_far_away_as_asked(initial):
    noise = ParameterNoise(distance=0.2, initial_std=initial, factor=1.2)
    p, state = begun(replace(PLAIN, hidden=(32, 32), parameter_noise=noise))
    batch = a_batch(1, jax.random.key(1))
    stds = []
    for i in range(80):
        state = p.condition(state._replace(updates=jnp.int32(i)), batch)
        stds.append(float(state.noise_std))
    steps = np.diff(np.log(stds)) / np.log(1.2)
    np.testing.assert_allclose(np.abs(steps), 1, rtol=1e-2)
    assert 0 < np.mean(steps[-40:] > 0) < 1, "it has settled"
    keys = jax.random.split(jax.random.key(7), 200)
    std = jnp.float32(np.exp(np.mean(np.log(stds[-40:]))))

    def distance(key):
        actor = noise.perturbed(state.actor, std, key)
        moved = jax.vmap(lambda x: actor.unit(x) - state.actor.unit(x))(batch.observation)
        return jnp.sqrt(jnp.mean(moved**2))

    assert float(jnp.median(jax.vmap(distance)(keys))) == pytest.approx(0.2, rel=0.35)


def test_two_agents_have_different_parameter_noise():
    agent = replace(PLAIN, parameter_noise=ParameterNoise())
    init = program(agent).init
    a, b = (init(SPACES, jax.random.key(seed)).noise_key for seed in (0, 1))
    assert (jax.random.key_data(a) != jax.random.key_data(b)).any()


# --- Thompson sampling -------------------------------------------------------------------------

FAMILIES = [MNF(), Noisy(), Bootstrap(heads=4), BayesLinear()]


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_thompson_follows_one_draw_for_an_episode(family):
    agent = replace(PLAIN, posterior=family, thompson=Thompson(learning_rate=0.01))
    p, state = begun(agent)
    members = state.posterior.num_members
    batch = a_batch(members, jax.random.key(1))
    same(state.draw.actor, state.actor, rtol=0, atol=0)
    expected = state.posterior.sample(jax.random.split(jax.random.key(1))[1]).network
    same(state.draw.critic, expected)

    def opinion(critic, actor):
        actions = jax.vmap(actor)(batch.observation)
        return float(jnp.mean(jax.vmap(critic)((batch.observation, actions))))

    held, before = state.draw, opinion(state.draw.critic, state.draw.actor)
    for i in range(20):
        state, _ = p.update(p.stepped(state, NO), batch, jax.random.key(i))
        assert not state.stale
    same(state.draw.critic, held.critic, rtol=0, atol=0)
    if not isinstance(family, BayesLinear):  # whose critic is 0 before it is conditioned
        assert opinion(state.draw.critic, state.draw.actor) > before
        assert opinion(held.critic, state.draw.actor) > opinion(held.critic, state.actor)
    x = batch.observation[0]
    np.testing.assert_allclose(
        p.act(state, x, jax.random.key(0)), state.draw.actor(x), rtol=1e-4, atol=1e-5
    )
    renewed = p.refresh(p.stepped(state, YES), jax.random.key(8))
    same(renewed.draw.actor, state.actor, rtol=0, atol=0)
    assert differ(renewed.draw.critic, held.critic)


def test_thompson_with_an_ensemble_holds_one_head():
    agent = replace(PLAIN, posterior=Bootstrap(heads=4), thompson=Thompson())
    _, state = begun(agent)
    pair = (jnp.ones((1, FEATURES)), jnp.array([[0.5, 0.6]]))
    values = np.asarray(state.posterior.members(None)(pair))[:, 0, 0]
    held = float(state.draw.critic(jax.tree.map(lambda x: x[0], pair))[0])
    assert np.isclose(values, held, rtol=1e-5).sum() == 1


def test_in_a_vector_each_environment_adapts_to_its_own_draw():
    agent = replace(PLAIN, posterior=MeanField(initial_std=1.0), thompson=Thompson(0.05))
    state = agent.init(SPACES, jax.random.key(0))
    wide = lambda x: jnp.broadcast_to(x, (3, *x.shape))  # noqa: E731
    state = state._replace(draw=jax.tree.map(wide, state.draw), stale=wide(state.stale))
    axes = state._replace(**dict.fromkeys(state._fields))._replace(draw=0, stale=0)
    refresh = jax.jit(jax.vmap(agent.refresh, in_axes=(axes, 0), out_axes=axes))
    state = refresh(state, jax.random.split(jax.random.key(1), 3))
    update, batch = jax.jit(agent.update), a_batch(1, jax.random.key(2))
    vector, _ = update(state, batch, jax.random.key(3))
    for i in range(3):
        own = state._replace(
            draw=jax.tree.map(lambda x: x[i], state.draw),  # noqa: B023
            stale=state.stale[i],
        )
        alone, _ = update(own, batch, jax.random.key(3))
        same(jax.tree.map(lambda x: x[i], vector.draw), alone.draw)  # noqa: B023
        same(vector.actor, alone.actor)
    weights = np.asarray(vector.draw.actor.head.weight)
    assert np.abs(weights[0] - weights[1]).max() > 1e-3


def test_options_can_be_added_up_where_that_makes_sense():
    p, state = begun(replace(PLAIN, noise=OrnsteinUhlenbeck(dt=1.0), thompson=Thompson()))
    after = p.refresh(p.stepped(state, NO), jax.random.key(3))
    same(after.draw.critic, state.draw.critic, rtol=0, atol=0)
    assert differ(after.draw.noise, state.draw.noise)
    with pytest.raises(ValueError, match=r"thompson: got .*takes None where there is param"):
        replace(PLAIN, parameter_noise=ParameterNoise(), thompson=Thompson())


# --- observations ------------------------------------------------------------------------------


def test_observations_are_normalised_by_statistics_that_the_state_holds():
    p, state = begun(replace(PLAIN, normalise_observations=True))
    plain, bare = begun(PLAIN)
    batch = a_batch(1, jax.random.key(1))
    far = batch._replace(
        observation=100 + 30 * batch.observation,
        next_observation=100 + 30 * batch.next_observation,
    )
    updated, metrics = p.update(state, far, jax.random.key(2))
    seen = np.asarray(far.observation)
    np.testing.assert_allclose(updated.statistics.mean, seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(updated.statistics.variance, seen.var(0), rtol=1e-3)
    normalise = lambda x: jnp.asarray((x - seen.mean(0)) / seen.std(0), jnp.float32)  # noqa: E731
    given = batch._replace(
        observation=normalise(np.asarray(far.observation)),
        next_observation=normalise(np.asarray(far.next_observation)),
    )
    expected, by_hand = plain.update(bare, given, jax.random.key(2))
    assert float(metrics.loss) == pytest.approx(float(by_hand.loss), rel=1e-3)
    same(updated.actor, expected.actor, rtol=1e-3, atol=1e-4)
    x = far.observation[3]
    action = p.act(updated, x, jax.random.key(0))
    np.testing.assert_allclose(action, updated.actor(given.observation[3]), rtol=1e-3)
    np.testing.assert_allclose(p.agent.evaluator(updated)(x), action, rtol=1e-5)


# --- settings ----------------------------------------------------------------------------------


def test_presets_are_the_papers():
    for agent in CONTINUOUS.values():
        assert (agent.hidden, agent.layer_norm) == ((64, 64), True)
        assert (agent.learning_rate, agent.actor_learning_rate) == (1e-3, 1e-4)
        assert (agent.batch_size, agent.replay_capacity, agent.gamma) == (128, 100_000, 0.99)
        assert (agent.target_rate, agent.update_every, agent.loss) == (0.001, 1, "squared")
        assert not agent.truncation_terminates
    mnf = CONTINUOUS["mnf-ddpg"]
    assert mnf.posterior == MNF(flow_steps=1, auxiliary_steps=1, flow_hidden=16)
    assert (mnf.noise, mnf.parameter_noise, mnf.thompson) == (None, None, None)
    assert CONTINUOUS["ddpg"].noise.sigma == 0.2
    explores = {name for name, agent in CONTINUOUS.items() if agent.noise is not None}
    assert explores == {"ddpg"}


DISCRETE = Spaces((FEATURES,), 4)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: DDPG(Point(), hidden=()), r"hidden: got \(\), takes at least one layer"),
        (lambda: DDPG(Point(), actor_learning_rate=0.0), "actor_learning_rate: got 0.0"),
        (lambda: DDPG(Point(), batch_size=200, replay_capacity=100), "batch_size: got 200"),
        (
            lambda: PLAIN.init(DISCRETE, jax.random.key(0)),
            "action space: got 'one of 4 actions', takes a Box",
        ),
        (
            lambda: DQN(Point()).init(SPACES, jax.random.key(0)),
            "action space: got '2 numbers within bounds', takes a Discrete space",
        ),
        (
            lambda: PLAIN.init(replace(SPACES, observation_shape=(8, 8, 3)), jax.random.key(0)),
            r"observation space: got \(8, 8, 3\), takes a vector of numbers",
        ),
        (
            lambda: replace(PLAIN, normalise_observations=True).init(
                replace(SPACES, observation_shape=(), categories=5), jax.random.key(0)
            ),
            "normalise_observations: got True, takes False",
        ),
        (lambda: replace(SPACES, action_high=None), "action_high: got .*takes 2 bounds"),
        (
            lambda: replace(SPACES, action_high=(3.0, float("inf"))),
            "action_high: got .*takes finite bounds",
        ),
        (lambda: replace(SPACES, action_low=(-3e38, 0.0)), "action_high: .*takes finite bounds"),
        (lambda: replace(SPACES, action_low=(3.0, 0.0)), "action_high: .*takes finite bounds"),
    ],
)
def test_wrong_settings_and_spaces_are_refused(make, match):
    with pytest.raises(ValueError, match=match) as caught:
        make()
    assert str(caught.value).count("\n") == 0

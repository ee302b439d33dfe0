"""The table "who uses which draw" of the design, cell by cell, for every preset.

A posterior on tape writes down who is asked for what, with which key; numbers are then held beside
a loss that is written out by hand. All that is asked of one preset is computed in one jitted
function (compiling is what takes time), and each test looks at its own part.
"""

import functools
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from tape import ONLINE, TARGET, Tape, taped

from randq.agents.dqn import DQN
from randq.exploration import Epsilon
from randq.networks import MLP
from randq.posteriors import (
    MNF,
    Bootstrap,
    MeanField,
    Point,
    learnt,
    trainable,
)
from randq.presets import PRESETS
from randq.types import Spaces, Transition

FEATURES, ACTIONS, BATCH = 3, 3, 48
SPACES = Spaces((FEATURES,), ACTIONS)
GAMMA = 0.75
# Lambda is 5 / 50, so that a forgotten cost, or one scaled otherwise, shows.
SMALL = {
    "hidden": (5,),
    "gamma": GAMMA,
    "batch_size": BATCH,
    "alpha": 5.0,
    "replay_capacity": 50,
    "max_grad_norm": None,
}
LAMBDA = 0.1
# For these tests one compiler option matters: compile fast.
FAST = {"xla_backend_optimization_level": 0}


@pytest.fixture(params=PRESETS, scope="module")  # so that tests of one preset stand together
def name(request):
    return request.param


def shaken_weights(posterior, key):
    """Other values of all that is learnt, so that no weight is zero and no two are equal."""
    changing, rest = learnt(posterior)
    leaves, structure = jax.tree.flatten(changing)
    keys = jax.random.split(key, len(leaves))
    leaves = [x + 0.4 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, leaves), rest)


def shaken(posterior, key, who):
    """The same on tape, as the online or the target posterior."""
    return eqx.tree_at(lambda p: p.who.tree, shaken_weights(posterior, key), jnp.float32(who))


def a_batch(members, key):
    keys = jax.random.split(key, 6)
    return Transition(
        observation=4 * jax.random.normal(keys[0], (BATCH, FEATURES)),
        action=jnp.arange(BATCH, dtype=jnp.int32) % ACTIONS,
        reward=2 * jax.random.normal(keys[1], (BATCH,)),
        next_observation=4 * jax.random.normal(keys[2], (BATCH, FEATURES)),
        terminated=jnp.arange(BATCH) % 4 == 1,
        masks=jax.random.bernoulli(keys[3], 0.6, (BATCH, members)).astype(jnp.float32),
    )


@functools.cache
def facts(name, **changes):
    agent = replace(PRESETS[name], **SMALL, epsilon=None, **changes)
    agent = replace(agent, posterior=Tape(agent.posterior))
    script = {}

    def compute(key):
        keys = iter(jax.random.split(key, 12))
        state = agent.init(SPACES, next(keys))
        online = shaken(state.posterior, next(keys), ONLINE)
        target = shaken(state.posterior, next(keys), TARGET)
        state = state._replace(posterior=online, target=agent.followed(target)[0])
        batch = a_batch(online.num_members, next(keys))
        seen = batch.observation

        refresh_key, other_key, update_key, act_key = (next(keys) for _ in range(4))
        refreshed, on_refresh = taped(lambda: agent.refresh(state, refresh_key))
        held = refreshed._replace(draw=online.inner.sample(other_key).network)
        kept = agent.refresh(held, refresh_key)
        act = jax.vmap(agent.act, in_axes=(None, 0, None))
        actions, on_act = taped(lambda: act(refreshed, seen, act_key))
        (updated, metrics), on_update = taped(lambda: agent.update(held, batch, update_key))
        conditioned, on_condition = taped(lambda: agent.condition(held, batch))
        scores, on_evaluation = taped(lambda: jax.vmap(agent.evaluator(held))(seen))

        # By hand: what learns, what the target is, and the gradient of the loss. The noise of the
        # target is whatever the tape says; the tests say what it has to be.
        learning = online.inner.members(update_key)
        asked = [i for i, (what, _, _) in enumerate(on_update) if what == "members"]
        assert len(asked) == 2
        target_key = on_update[asked[1]][2]
        whole_target = target.inner.members(target_key)
        q, q_next = learning(batch.observation), learning(batch.next_observation)
        target_next = whole_target(batch.next_observation)
        chooser = q_next if agent.double else target_next
        chosen = jax.nn.one_hot(jnp.argmax(chooser, axis=2), ACTIONS)
        bootstrap = (
            jnp.sum(chosen * target_next, axis=2) * jnp.where(batch.terminated, 0.0, 1.0)[None]
        )
        goal = jax.lax.stop_gradient(batch.reward[None] + GAMMA * bootstrap)

        def by_hand(params):
            members = eqx.combine(params, trainable(online)[1]).inner.members(update_key)
            taken = jax.nn.one_hot(batch.action, ACTIONS)[None] * members(batch.observation)
            error = jnp.abs(jnp.sum(taken, axis=2) - goal)
            huber = jnp.where(error < 1, error**2 / 2, error - 0.5)
            return jnp.sum(huber * batch.masks.T) / BATCH + LAMBDA * members.cost

        script["update"] = [(what, key is None) for what, _, key in on_update]
        script["refresh"] = [what for what, _, _ in on_refresh]
        script["act"] = [what for what, _, _ in on_act]
        script["evaluation"] = [what for what, _, _ in on_evaluation]
        script["condition"] = [(what, key is None) for what, _, key in on_condition]
        return {
            "batch": batch,
            "held": held,
            "refreshed": refreshed.draw,
            "expected draw": online.inner.sample(refresh_key).network,
            "another draw": held.draw,
            "kept": kept.draw,
            "values of the draw": jax.vmap(refreshed.draw)(seen),
            "actions": actions,
            "actions of another draw": act(held, seen, act_key),
            "values of another draw": jax.vmap(held.draw)(seen),
            "updated": updated,
            "metrics": metrics,
            "keys": {
                "refresh": [jax.random.key_data(k) for _, _, k in on_refresh],
                "update": [jax.random.key_data(k) for _, _, k in on_update if k is not None],
                "asked": jax.random.key_data(update_key),
                "asked to refresh": jax.random.key_data(refresh_key),
            },
            "who": {
                "update": [who for _, who, _ in on_update],
                "condition": [who for _, who, _ in on_condition],
                "refresh": [who for _, who, _ in on_refresh],
                "evaluation": [who for _, who, _ in on_evaluation],
            },
            "q": q,
            "q_next": q_next,
            "target_next": target_next,
            "mean target_next": target.inner.members(None)(batch.next_observation),
            "mean q_next": online.inner.members(None)(batch.next_observation),
            "cost": learning.cost,
            "gradient": jax.grad(by_hand)(trainable(online)[0]),
            "before": trainable(online)[0],
            "after": trainable(updated.posterior)[0],
            "scores": scores,
            "mean": jax.vmap(online.inner.mean())(seen),
            "member values": online.inner.members(None)(seen),
            "one network": jax.vmap(online.inner.sample(update_key).network)(seen),
            "conditioned": conditioned,
        }

    result = jax.device_get(jax.jit(compute, compiler_options=FAST)(jax.random.key(4)))
    return agent, script, result


def same(a, b, **tolerance):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


def differ(a, b):
    return any(
        not np.allclose(x, y, atol=1e-4)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


# --- acts with ---------------------------------------------------------------------------------


def test_acts_with_the_held_draw(name):
    _, script, fact = facts(name)
    assert script["refresh"] == ["sample"]
    assert fact["who"]["refresh"] == [ONLINE]
    np.testing.assert_array_equal(fact["keys"]["refresh"][0], fact["keys"]["asked to refresh"])
    same(fact["refreshed"], fact["expected draw"])

    assert script["act"] == [], "acting must not ask the posterior, or noise would be constant"
    assert fact["actions"].dtype == np.int32
    np.testing.assert_array_equal(fact["actions"], fact["values of the draw"].argmax(axis=1))
    others = fact["values of another draw"].argmax(axis=1)
    np.testing.assert_array_equal(fact["actions of another draw"], others)


def test_a_draw_is_random_where_the_family_is(name):
    _, _, fact = facts(name)
    if name in ("dqn", "ddqn"):
        same(fact["refreshed"], fact["another draw"])
        same(fact["values of the draw"], fact["mean"])
    else:
        assert differ(fact["refreshed"], fact["another draw"])


def test_a_draw_that_is_not_stale_is_kept(name):
    _, _, fact = facts(name)
    same(fact["kept"], fact["another draw"], rtol=0, atol=0)


def test_an_ensemble_acts_with_one_of_its_heads():
    _, _, fact = facts("boot-dqn-prior")
    distance = np.abs(fact["member values"] - fact["values of the draw"][None]).max(axis=(1, 2))
    assert (distance < 1e-5).sum() == 1


# --- learns with -------------------------------------------------------------------------------


def test_learns_with_one_draw_of_the_key_of_the_update(name):
    _, script, fact = facts(name)
    # Asked for members twice: the online ones with the key, then those of the target.
    assert [what for what, _ in script["update"]] == ["members", "members"]
    assert fact["who"]["update"] == [ONLINE, TARGET]
    np.testing.assert_array_equal(fact["keys"]["update"][0], fact["keys"]["asked"])
    if name in ("noisy-dqn", "bbqn", "mnf-dqn"):
        # One network for the whole batch, neither the mean nor the one that acts.
        same(fact["q"][0], fact["one network"])
        assert differ(fact["q"][0], fact["mean"])
        assert differ(fact["q"][0], fact["values of another draw"])
    if name == "bdqn":
        same(fact["q"][0], fact["mean"])


def test_the_loss_is_the_one_written_out_by_hand(name):
    agent, _, fact = facts(name)
    batch, q, total = fact["batch"], fact["q"], 0.0
    for m in range(q.shape[0]):
        for i in range(BATCH):
            chooser = fact["q_next"] if agent.double else fact["target_next"]
            best = chooser[m, i].argmax()
            future = 0.0 if batch.terminated[i] else fact["target_next"][m, i, best]
            error = abs(q[m, i, batch.action[i]] - batch.reward[i] - GAMMA * future)
            loss = error**2 / 2 if error < 1 else error - 0.5
            total += batch.masks[i, m] * loss / BATCH
    total += LAMBDA * fact["cost"]
    assert fact["metrics"].loss == pytest.approx(total, rel=1e-4)
    assert fact["metrics"].cost == pytest.approx(float(fact["cost"]))
    assert (fact["cost"] != 0) == (name in ("bbqn", "mnf-dqn"))
    taken = np.take_along_axis(q, batch.action[None, :, None].astype(int), axis=2)
    assert fact["metrics"].q_mean == pytest.approx(taken.mean(), rel=1e-4, abs=1e-5)


def test_the_gradient_is_that_of_the_loss_by_hand(name):
    agent, _, fact = facts(name)
    # After one step of Adam, its first moment is a tenth of the gradient, all in one vector.
    [moment] = optax.tree_utils.tree_get(fact["updated"].optimiser, "mu")
    gradient = np.concatenate([x.reshape(-1) for x in jax.tree.leaves(fact["gradient"])])
    same(10 * moment, gradient, atol=2e-5)
    largest = max(np.abs(x).max() for x in jax.tree.leaves(fact["gradient"]))
    assert largest > 1e-2

    def adam(before, gradient):
        return before - agent.learning_rate * gradient / (np.abs(gradient) + agent.adam_eps)

    same(fact["after"], jax.tree.map(adam, fact["before"], fact["gradient"]), atol=3e-5)
    assert fact["updated"].updates == 1


def test_an_update_leaves_the_target_and_the_held_draw_alone(name):
    _, _, fact = facts(name)
    same(fact["updated"].target, fact["held"].target, rtol=0, atol=0)
    same(fact["updated"].draw, fact["held"].draw, rtol=0, atol=0)
    assert fact["updated"].steps == fact["held"].steps


def test_each_head_learns_from_its_own_masked_transitions():
    _, _, fact = facts("boot-dqn")
    masks = fact["batch"].masks
    assert masks.shape == (BATCH, 10)
    assert 0 < masks.mean() < 1
    assert len({tuple(column) for column in masks.T}) > 1


# --- target ------------------------------------------------------------------------------------


def test_noise_of_the_target(name):
    _, script, fact = facts(name)
    target_is_mean = script["update"][1][1]
    if name == "noisy-dqn":
        assert not target_is_mean
        learning, target = fact["keys"]["update"]
        assert (learning != target).any(), "fresh noise must not be that of the learning draw"
        assert differ(fact["target_next"], fact["mean target_next"])
    else:
        assert target_is_mean
        same(fact["target_next"], fact["mean target_next"])


def test_the_target_may_have_the_noise_of_the_learning_draw():
    _, script, fact = facts("bbqn", target_noise="same")
    assert script["update"] == [("members", False), ("members", False)]
    np.testing.assert_array_equal(*fact["keys"]["update"])
    assert differ(fact["target_next"], fact["mean target_next"])


def test_the_batch_can_tell_the_selectors_apart(name):
    """Else the tests above could not fail: the two ways to select must differ in the target."""
    _, _, fact = facts(name)
    alive = ~fact["batch"].terminated
    by_learning, by_target = (fact[k].argmax(axis=2)[:, alive] for k in ("q_next", "target_next"))
    assert (by_learning != by_target).any()
    assert PRESETS[name].double == (name != "dqn")
    if name in ("noisy-dqn", "bbqn", "mnf-dqn"):
        # Double-Q selects with the learning draw, not with the mean: that has to show as well.
        assert (by_learning != fact["mean q_next"].argmax(axis=2)[:, alive]).any()


def test_each_head_has_its_own_target():
    _, _, fact = facts("boot-dqn")
    spread = fact["target_next"].std(axis=0)
    assert (spread > 1e-3).all()


# --- priors ------------------------------------------------------------------------------------


def test_priors_are_constant_and_shared_with_the_target():
    _, _, fact = facts("boot-dqn-prior")
    prior = lambda state: state.posterior.inner.heads.prior.tree  # noqa: E731
    same(prior(fact["updated"]), prior(fact["held"]), rtol=0, atol=0)
    assert jax.tree.leaves(fact["held"].target.inner.heads.prior) == []
    assert jax.tree.leaves(fact["gradient"].inner.heads.prior) == []
    weights = jax.tree.leaves(prior(fact["held"]))
    assert all(x.shape[0] == 10 for x in weights)
    assert differ([x[0] for x in weights], [x[1] for x in weights])

    # The values of each target head are its own network plus three times the same prior.
    def by_hand(own, x):
        for layer in own.hidden:
            x = np.maximum(np.einsum("bi,io->bo", x, layer.weight) + layer.bias, 0)
        return np.einsum("bi,io->bo", x, own.head.weight) + own.head.bias

    x = fact["batch"].next_observation
    for head in range(10):
        own, fixed = (
            jax.tree.map(lambda w: w[head], tree)  # noqa: B023
            for tree in (fact["held"].target.inner.heads.own, prior(fact["held"]))
        )
        expected = by_hand(own, x) + 3.0 * by_hand(fixed, x)
        np.testing.assert_allclose(fact["target_next"][head], expected, rtol=1e-4, atol=1e-4)


# --- evaluates with ----------------------------------------------------------------------------


def test_evaluates_without_noise(name):
    _, script, fact = facts(name)
    assert script["evaluation"] == ["evaluator"]
    assert fact["who"]["evaluation"] == [ONLINE]
    if name.startswith("boot"):
        votes = fact["member values"].argmax(axis=2)
        for i in range(BATCH):
            counts = np.bincount(votes[:, i], minlength=ACTIONS)
            best = np.flatnonzero(counts == counts.max())
            expected = best[fact["mean"][i][best].argmax()]  # a tie goes to the larger average
            assert fact["scores"][i].argmax() == expected
        # A vote is not an average: the batch shows it.
        assert (fact["scores"].argmax(axis=1) != fact["mean"].argmax(axis=1)).any()
    else:
        same(fact["scores"], fact["mean"])


# --- redrawn -----------------------------------------------------------------------------------

REDRAWN = {
    # A point has one draw, which is outdated when the weights have changed.
    "dqn": {"episode", "update"},
    "ddqn": {"episode", "update"},
    "noisy-dqn": {1},
    "bbqn": {"episode", "update"},
    "mnf-dqn": {"episode", "update"},
    "boot-dqn": {"episode"},
    "boot-dqn-prior": {"episode"},
    "bdqn": {100},
}


def test_when_a_draw_is_outdated(name):
    agent, _, fact = facts(name)
    assert not fact["held"].stale
    assert fact["updated"].stale == ("update" in REDRAWN[name])

    every = next((when for when in REDRAWN[name] if isinstance(when, int)), None)
    state = fact["held"]
    for steps in (1, 2, 50, 99, 100, 101, 199, 200):
        for ended in (False, True):
            before = state._replace(steps=jnp.int32(steps - 1))
            after = agent.stepped(before, jnp.bool_(ended))
            expected = (ended and "episode" in REDRAWN[name]) or (
                every is not None and steps % every == 0
            )
            assert bool(after.stale) == expected, (steps, ended)
            assert int(after.steps) == steps
            assert int(after.episodes) == int(ended)
            # What is outdated stays so until it is replaced.
            outdated = before._replace(stale=jnp.bool_(True))
            assert bool(agent.stepped(outdated, jnp.bool_(False)).stale)


def test_a_new_agent_has_no_draw_to_act_with_yet(name):
    agent = replace(PRESETS[name], **SMALL, posterior=Point())
    state = agent.init(SPACES, jax.random.key(0))
    assert bool(state.stale)
    assert [int(x) for x in (state.steps, state.episodes, state.updates)] == [0, 0, 0]
    same(state.target, learnt(state.posterior)[0], rtol=0, atol=0)


# --- closed form -------------------------------------------------------------------------------


def test_bdqn_learns_its_last_layer_in_closed_form_alone():
    _, script, fact = facts("bdqn")
    last = lambda state: state.posterior.inner.last.tree  # noqa: E731
    same(last(fact["updated"]), last(fact["held"]), rtol=0, atol=0)
    assert jax.tree.leaves(fact["gradient"].inner.last) == []

    assert [what for what, _ in script["condition"]] == ["members", "members", "condition"]
    assert fact["who"]["condition"] == [ONLINE, TARGET, ONLINE]
    assert all(noiseless for _, noiseless in script["condition"])

    batch, x = fact["batch"], fact["batch"].observation
    for layer in fact["held"].posterior.inner.torso.hidden:
        x = np.maximum(x @ layer.weight + layer.bias[None], 0)
    x = np.concatenate([x, np.ones((BATCH, 1))], axis=1).astype(np.float64)
    for action in range(ACTIONS):
        gram, moment = np.eye(x.shape[1]), np.zeros(x.shape[1])
        for i in range(BATCH):
            if batch.action[i] == action:
                best = fact["q_next"][0, i].argmax()
                future = 0.0 if batch.terminated[i] else fact["target_next"][0, i, best]
                gram += np.outer(x[i], x[i])
                moment += x[i] * (batch.reward[i] + GAMMA * future)
        mean = last(fact["conditioned"]).mean[action]
        np.testing.assert_allclose(mean, np.linalg.solve(gram, moment), rtol=1e-3, atol=1e-4)
        root = last(fact["conditioned"]).precision_root[action]
        np.testing.assert_allclose(root @ root.T, gram, rtol=1e-3, atol=1e-4)


def test_only_bdqn_has_a_closed_form(name):
    _, _, fact = facts(name)
    changed = differ(fact["conditioned"].posterior, fact["held"].posterior)
    assert changed == (name == "bdqn")


# --- when the target moves ---------------------------------------------------------------------


@functools.cache
def two_agents():
    agent = DQN(posterior=Bootstrap(heads=2, prior_scale=1.0), hidden=(4,), target_every=100)
    states = [agent.init(SPACES, jax.random.key(i)) for i in (0, 1)]
    return agent, states[0]._replace(target=states[1].target)


@pytest.mark.parametrize(
    ("before", "steps", "due"),
    [
        (0, 99, False),
        (0, 100, True),
        (99, 100, True),
        (100, 101, False),
        (100, 199, False),
        (108, 216, True),
        (324, 432, True),
        (150, 420, True),
    ],
)
@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_the_target_moves_only_when_due(before, steps, due, rate):
    agent, state = two_agents()
    agent, state = replace(agent, target_rate=rate), state._replace(steps=jnp.int32(steps))
    assert agent.target_due(state.steps, jnp.int32(before)) == due
    after = agent.move_target(state) if due else state
    online = learnt(state.posterior)[0]
    move = lambda new, old: rate * new + (1 - rate) * old  # noqa: E731
    expected = jax.tree.map(move, online, state.target) if due else state.target
    exactly = {"rtol": 0, "atol": 0} if rate == 1.0 or not due else {}
    same(after.target, expected, **exactly)
    same(after.posterior, state.posterior, rtol=0, atol=0)
    assert differ(online, state.target)


@functools.cache
def settled_and_not():
    """A target that is copied without noise, and others."""
    agent = DQN(posterior=MNF(), hidden=(4,), target_every=100)
    others = [{"target_rate": 0.5}, {"target_noise": "fresh"}, {"target_noise": "same"}]
    agents = [agent, *(replace(agent, **other) for other in others)]
    return [(agent, agent.init(SPACES, jax.random.key(0))) for agent in agents]


def test_a_copy_without_noise_is_kept_as_the_network_that_it_stays():
    (agent, state), *others = settled_and_not()
    network = MLP.create(FEATURES, [4], ACTIONS, key=jax.random.key(0))
    shapes = lambda tree: sorted(x.shape for x in jax.tree.leaves(tree))  # noqa: E731
    assert shapes(state.target) == shapes(network)
    assert len(jax.tree.leaves(state.posterior)) > len(jax.tree.leaves(network))
    for _, other in others:
        same(other.target, learnt(other.posterior)[0], rtol=0, atol=0)

    # It is the mean of the posterior that it was copied from, and not of what that becomes.
    moved = state._replace(posterior=shaken_weights(state.posterior, jax.random.key(1)))
    x = jax.random.normal(jax.random.key(2), (5, FEATURES))
    before, after, online = (
        jax.vmap(network)(x)
        for network in (
            state.posterior.mean(),
            eqx.combine(moved.target, agent.followed(moved.posterior)[1]).mean(),
            moved.posterior.mean(),
        )
    )
    np.testing.assert_allclose(after, before, rtol=1e-6)
    assert np.abs(online - before).max() > 0.01
    copied = agent.move_target(moved)
    target = eqx.combine(copied.target, agent.followed(copied.posterior)[1])
    np.testing.assert_allclose(jax.vmap(target.mean())(x), online, rtol=1e-6)


# --- settings of the loss and of the step ------------------------------------------------------


@functools.cache
def one_update(**changes):
    """Gradient and metrics of the first update of a mean-field agent."""
    agent = DQN(posterior=MeanField(), **(SMALL | changes))

    def compute(key):
        keys = jax.random.split(key, 3)
        state = agent.init(SPACES, keys[0])
        batch = a_batch(1, keys[1])._replace(reward=jnp.full(BATCH, 5.0))
        after, metrics = agent.update(state, batch, keys[2])
        return optax.tree_utils.tree_get(after.optimiser, "mu"), metrics

    moment, metrics = jax.device_get(jax.jit(compute, compiler_options=FAST)(jax.random.key(0)))
    return np.concatenate([10 * x.reshape(-1) for x in jax.tree.leaves(moment)]), metrics


def test_long_gradients_are_scaled_down_and_not_their_elements():
    free, _ = one_update()
    norm = np.linalg.norm(free)
    assert norm > 0.6
    clipped, _ = one_update(max_grad_norm=0.5)
    np.testing.assert_allclose(clipped, free * 0.5 / norm, rtol=1e-4, atol=1e-6)
    untouched, _ = one_update(max_grad_norm=1000.0)
    np.testing.assert_allclose(untouched, free, rtol=1e-5, atol=1e-7)


def test_the_cost_is_scaled_by_alpha_over_the_capacity_or_as_given():
    _, without = one_update(cost_scale=0.0)
    cost = without.cost
    assert cost > 1
    for changes, scale in [
        ({}, 5 / 50),
        ({"alpha": 3.0, "replay_capacity": 60}, 0.05),
        ({"cost_scale": 0.7}, 0.7),
    ]:
        _, metrics = one_update(**changes)
        assert metrics.cost == pytest.approx(float(cost), rel=1e-5)
        assert metrics.loss - without.loss == pytest.approx(scale * cost, rel=1e-3)


def test_the_squared_loss():
    _, huber = one_update(cost_scale=0.0)
    _, squared = one_update(cost_scale=0.0, loss="squared")
    # Rewards are 5, so all errors are beyond 1: huber is |e| - 1/2.
    assert squared.loss > 2 * huber.loss


# --- noise on actions --------------------------------------------------------------------------


def actions(agent, steps=0, episodes=0, count=9000):
    """Actions in one state under many keys, and the greedy one."""
    agent = replace(agent, hidden=(4,))
    state = agent.init(SPACES, jax.random.key(0))
    state = state._replace(steps=jnp.int32(steps), episodes=jnp.int32(episodes))
    keys = jax.random.split(jax.random.key(1), count)
    act = jax.jit(jax.vmap(agent.act, in_axes=(None, None, 0)))
    x = jnp.ones(FEATURES)
    return np.asarray(act(state, x, keys)), int(jnp.argmax(state.draw(x)))


def test_epsilon_is_the_chance_of_an_action_out_of_all():
    agent = DQN(posterior=Point(), epsilon=Epsilon(start=0.6, end=0.3, decay=10))
    for episodes, chance in [(0, 0.6), (5, 0.45), (10, 0.3), (99, 0.3)]:
        taken, greedy = actions(agent, episodes=episodes)
        counts = np.bincount(taken, minlength=ACTIONS)
        expected = np.full(ACTIONS, chance / ACTIONS)
        expected[greedy] += 1 - chance
        assert scipy.stats.chisquare(counts, expected * len(taken)).pvalue > 1e-3
    taken, greedy = actions(replace(agent, epsilon=Epsilon(start=0.0, end=0.0)))
    assert (taken == greedy).all()


def test_only_the_point_presets_are_epsilon_greedy():
    explores = {name for name, agent in PRESETS.items() if agent.epsilon is not None}
    assert explores == {"dqn", "ddqn"}


def test_random_steps_come_first():
    agent = DQN(posterior=Point(), random_steps=7)
    for steps in (0, 6):
        taken, _ = actions(agent, steps=steps)
        counts = np.bincount(taken, minlength=ACTIONS)
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
    taken, greedy = actions(agent, steps=7)
    assert (taken == greedy).all()

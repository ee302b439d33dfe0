"""Masked RealNVP: log-determinants against `jax.jacobian`, inverses, and numbers at the edge."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from randq.flows import Flow, RealNVPStep
from randq.networks import Linear
from randq.noise import normals

KEY = jax.random.key(0)


def make(size, steps, seed=0, dtype=jnp.float32, hidden=5):
    """A flow with weights larger than at its start, a z, and random masks."""
    rng = np.random.default_rng(seed)
    flow = Flow.create(size, steps, hidden, key=jax.random.key(seed), dtype=dtype)
    flow = jax.tree.map(lambda x: 2 * x, flow)
    masks = jnp.asarray(rng.integers(0, 2, (steps, size)), dtype)
    return flow, jnp.asarray(rng.normal(size=size), dtype), masks


def constant_step(shift, gate):
    """A step whose networks ignore z."""
    size = len(shift)
    zeros = jnp.zeros((size, size))
    biases = (jnp.zeros(size), jnp.asarray(shift), jnp.asarray(gate))
    return RealNVPStep(*(Linear(zeros, bias) for bias in biases))


def test_one_step_by_hand():
    """sigma = 1/4 where the gate is -log 3: z moves three quarters of its way to mu."""
    step = constant_step([4.0, 99.0, 8.0], [-np.log(3.0), 98.0, 0.0])
    z, log_dets = step(jnp.asarray([0.0, 5.0, 2.0]), jnp.asarray([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(z, [3.0, 5.0, 5.0], rtol=1e-6)
    np.testing.assert_allclose(log_dets, [np.log(1 / 4), 0, np.log(1 / 2)], rtol=1e-6)


def test_half_a_mask_averages_keeping_and_moving():
    z, log_dets = constant_step([4.0], [0.0])(jnp.asarray([2.0]), jnp.asarray([0.5]))
    np.testing.assert_allclose(z, [0.5 * 2 + 0.5 * 3])
    np.testing.assert_allclose(log_dets, [0.5 * np.log(0.5)], rtol=1e-6)


@pytest.mark.parametrize("steps", range(5))
def test_log_det_is_that_of_the_jacobian(steps, x64):
    flow, z, masks = make(6, steps, seed=steps, dtype=jnp.float64)
    jacobian = jax.jit(jax.jacobian(lambda z: flow(z, masks)[0]))(z)
    sign, expected = np.linalg.slogdet(jacobian)
    assert sign == 1
    np.testing.assert_allclose(flow(z, masks)[1], expected, rtol=1e-10, atol=1e-12)
    if steps:
        assert abs(expected) > 0.1


@given(
    size=st.integers(1, 7),
    steps=st.integers(0, 3),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_log_det_and_inverse_for_any_flow(size, steps, seed, dtype):
    with jax.enable_x64(dtype == "float64"):
        flow, z, masks = make(size, steps, seed, dtype)

        @jax.jit
        def there_and_back(z):
            there, log_det = flow(z, masks)
            jacobian = jax.jacobian(lambda z: flow(z, masks)[0])(z)
            return there, log_det, jnp.linalg.slogdet(jacobian)[1], *flow.inverse(there, masks)

        there, log_det, expected, back, inverse_log_det = there_and_back(z)
        tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == "float32" else {"rtol": 1e-9}
        assert there.dtype == log_det.dtype == dtype
        np.testing.assert_allclose(log_det, expected, **tolerance)
        np.testing.assert_allclose(back, z, **tolerance)
        np.testing.assert_allclose(log_det + inverse_log_det, 0, atol=tolerance["rtol"])


def test_no_steps_do_nothing():
    flow, z, masks = make(4, 0)
    assert masks.shape == flow.mean_masks(z).shape == (0, 4)
    moved, log_det = flow(z, masks)
    np.testing.assert_array_equal(moved, z)
    assert log_det == 0


@pytest.mark.parametrize("gate", [0.0, 2.0, 10.0])
def test_gates_begin_where_they_are_told_to(gate):
    """Its weights are those of any other start; what masks do fades with the gates' opening."""
    flow, plain = (Flow.create(50, 2, 16, gate=g, key=KEY) for g in (gate, 0.0))
    for step, other in zip(flow.steps, plain.steps, strict=True):
        np.testing.assert_allclose(step.c.bias, other.c.bias + gate, rtol=1e-6)
        assert eqx.tree_equal((step.a, step.b, step.c.weight), (other.a, other.b, other.c.weight))
    z, masks = jnp.ones(50), jnp.zeros((2, 50))
    moved, log_det = flow(z, masks)
    left = jax.nn.sigmoid(gate) ** 2  # two steps that keep this share of z, and add little
    np.testing.assert_allclose(jnp.mean(moved), left, atol=0.1)
    np.testing.assert_allclose(log_det / 50, jnp.log(left), atol=0.05)


def test_kept_entries_stay_and_decide():
    """What a mask keeps is kept to the bit, and does not depend on what moves."""
    flow, z, _ = make(4, 1)
    mask = jnp.asarray([[1.0, 0.0, 1.0, 0.0]])
    moved, _ = flow(z, mask)
    np.testing.assert_array_equal(moved[::2], z[::2])
    jacobian = np.asarray(jax.jacobian(lambda z: flow(z, mask)[0])(z))
    np.testing.assert_array_equal(jacobian[::2], np.eye(4)[::2])
    assert jacobian[1, 3] == jacobian[3, 1] == 0
    assert (jacobian[1::2, ::2] != 0).all()


@pytest.mark.parametrize("gate", [-1e4, -200.0, 200.0, 1e4])
def test_saturated_gates_stay_finite(gate):
    """sigmoid(-200) is 0 in float32, whose logarithm would be -inf."""
    flow, z, _ = make(4, 2)
    flow = eqx.tree_at(lambda f: [step.c.bias for step in f.steps], flow, [jnp.full(4, gate)] * 2)
    masks = jnp.asarray([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]])

    @jax.jit
    def everything(flow, z):
        def total(flow, z):
            moved, log_det = flow(z, masks)
            return jnp.sum(moved) + log_det, (moved, log_det)

        return jax.grad(total, argnums=(0, 1), has_aux=True)(flow, z)

    gradients, (moved, log_det) = everything(flow, z)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((gradients, moved, log_det)))
    np.testing.assert_allclose(log_det, min(0, (2 + 2) * gate), rtol=0.1, atol=1e-6)


def test_masks_are_fair_coins_and_fresh_with_each_key():
    flow = Flow.create(5, 2, 3, key=KEY)
    draw = jax.vmap(lambda key: normals(lambda s: flow.masks(s, 5), key, jnp.float32))
    masks = np.asarray(draw(jax.random.split(KEY, 4000)))
    assert masks.shape == (4000, 2, 5)
    assert set(np.unique(masks)) == {0.0, 1.0}
    np.testing.assert_allclose(masks.mean(axis=0), 0.5, atol=4 * 0.5 / 4000**0.5)
    # No entry follows another one, of the same step or the other.
    correlation = np.corrcoef(masks.reshape(4000, 10).T) - np.eye(10)
    assert np.abs(correlation).max() < 5 / 4000**0.5


def test_mean_masks_are_one_half():
    flow, z, _ = make(3, 2)
    np.testing.assert_array_equal(flow.mean_masks(z), np.full((2, 3), 0.5))


@pytest.mark.parametrize(
    ("size", "steps", "hidden", "match"),
    [
        (0, 1, 3, "^flow size: got 0"),
        (2, -1, 3, "^flow steps: got -1, takes an integer >= 0"),
        (2, 1, 0, "^flow hidden units: got 0"),
    ],
)
def test_bad_sizes(size, steps, hidden, match):
    with pytest.raises(ValueError, match=match):
        Flow.create(size, steps, hidden, key=KEY)

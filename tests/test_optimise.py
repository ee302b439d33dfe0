"""One gradient step: small arrays are packed, large ones are not, and neither changes a step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from randq import optimise
from randq.optimise import begin, checked, descend, moved, norm
from randq.packing import Packing

PARAMS = {
    "a": jnp.linspace(-1, 1, 6, dtype=jnp.float32).reshape(2, 3),
    "b": jnp.arange(4, dtype=jnp.float32),
    "large": jnp.linspace(0, 3, 40, dtype=jnp.float32).reshape(8, 5),
}


@pytest.mark.parametrize(("large", "arrays"), [(39, 2), (40, 1), (0, 3)])
def test_steps_are_those_of_the_plain_optimiser(monkeypatch, large, arrays):
    monkeypatch.setattr(optimise, "Packing", functools.partial(Packing, large=large))
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    ours, packed = PARAMS, begin(optimiser, PARAMS)
    plain, state = PARAMS, optimiser.init(PARAMS)
    for i in range(3):
        gradient = jax.tree.map(lambda x, i=i: jnp.sin(x + i), plain)
        with jax.numpy_dtype_promotion("standard"):
            update, state = optimiser.update(gradient, state)
        plain = optax.apply_updates(plain, update)
        gradient = jax.tree.map(lambda x, i=i: jnp.sin(x + i), ours)
        ours, packed = descend(optimiser, gradient, jnp.zeros(()), ours, packed)
    assert len(optax.tree_utils.tree_get(packed, "mu")) == arrays
    for found, expected in zip(*map(jax.tree.leaves, (ours, plain)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_a_target_moves_a_part_of_the_way():
    new = jax.tree.map(jnp.cos, PARAMS)
    found = moved(PARAMS, new, 0.25)
    for x, old, to in zip(*map(jax.tree.leaves, (found, PARAMS, new)), strict=True):
        np.testing.assert_allclose(x, 0.75 * old + 0.25 * to, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("large", [0, 10, 1000])
def test_norm(monkeypatch, large):
    monkeypatch.setattr(optimise, "Packing", functools.partial(Packing, large=large))
    flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(PARAMS)])
    np.testing.assert_allclose(norm(PARAMS), np.linalg.norm(flat), rtol=1e-6)


def checked_by(max_norm, gradient, value=0.0):
    found, _ = checked(max_norm).update(gradient, optax.EmptyState(), value=jnp.asarray(value))
    return found


@pytest.mark.parametrize("max_norm", [None, 1.0, 1e6])
def test_a_long_gradient_is_scaled_down(max_norm):
    gradient = jax.tree.leaves(PARAMS)
    plain = optax.identity() if max_norm is None else optax.clip_by_global_norm(max_norm)
    expected, _ = plain.update(gradient, plain.init(gradient))
    for x, y in zip(checked_by(max_norm, gradient), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])  # the square of the last is not
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_gradient_that_is_not_finite_is_no_gradient(bad, max_norm):
    gradient = [jnp.ones((2, 3)), jnp.array([1.0, bad])]
    assert all(np.array_equal(x, np.zeros_like(x)) for x in checked_by(max_norm, gradient))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_nor_is_that_of_a_loss_that_is_not_finite(bad, max_norm):
    gradient = [jnp.ones((2, 3)), jnp.array([1.0, 2.0])]
    assert all(np.array_equal(x, np.zeros_like(x)) for x in checked_by(max_norm, gradient, bad))

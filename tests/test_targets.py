"""Worked by hand. 99 and 98 stand where a wrong selector, or a wrong branch, would land."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.targets import LOSSES, huber, q_target, squared


def target(reward, terminated, gamma, values, selector):
    values, selector = (jnp.asarray(x, jnp.float32) for x in (values, selector))
    return float(q_target(jnp.float32(reward), jnp.bool_(terminated), gamma, values, selector))


@pytest.mark.parametrize(
    ("reward", "terminated", "gamma", "values", "selector", "expected"),
    [
        # Plain Q-learning: the values select for themselves.
        (1.0, False, 0.5, [2.0, 6.0, 4.0], [2.0, 6.0, 4.0], 1 + 0.5 * 6),
        (-1.0, False, 0.9, [-5.0, -2.0], [-5.0, -2.0], -1 - 0.9 * 2),
        # Double Q-learning: the other network selects, and these values are taken.
        (1.0, False, 0.5, [99.0, 3.0, 98.0], [0.0, 0.5, 0.2], 1 + 0.5 * 3),
        (2.0, False, 0.5, [-4.0, 99.0, 98.0], [9.0, 8.0, 7.0], 2 - 0.5 * 4),
        # Its own value of that action, here 98 or 99, is never taken.
        (0.0, False, 1.0, [1.0, 2.0, 3.0], [98.0, 98.5, 99.0], 3.0),
        # Nothing is bootstrapped after a termination, whatever stands there.
        (0.25, True, 0.5, [99.0, 98.0], [98.0, 99.0], 0.25),
        (0.25, True, 0.5, [np.inf, np.nan], [99.0, 98.0], 0.25),
        # Without a discount factor, or with none of the future.
        (1.0, False, 1.0, [7.0, 99.0], [1.0, 0.0], 8.0),
        (1.0, False, 0.0, [99.0, 98.0], [1.0, 0.0], 1.0),
        # Ties go to the first action.
        (0.0, False, 1.0, [5.0, 99.0], [1.0, 1.0], 5.0),
    ],
)
def test_q_target(reward, terminated, gamma, values, selector, expected):
    assert target(reward, terminated, gamma, values, selector) == pytest.approx(expected)


def test_q_target_vmaps_over_a_batch():
    rewards, terminated = jnp.array([1.0, 1.0]), jnp.array([False, True])
    values, selector = jnp.array([[99.0, 2.0], [98.0, 99.0]]), jnp.array([[0.0, 1.0], [1.0, 0.0]])
    batched = jax.vmap(q_target, in_axes=(0, 0, None, 0, 0))
    np.testing.assert_allclose(batched(rewards, terminated, 0.5, values, selector), [2.0, 1.0])


@pytest.mark.parametrize(
    ("error", "quadratic", "robust"),
    [(0.0, 0.0, 0.0), (0.5, 0.25, 0.125), (1.0, 1.0, 0.5), (3.0, 9.0, 2.5), (-4.0, 16.0, 3.5)],
)
def test_losses(error, quadratic, robust):
    assert float(squared(jnp.float32(error))) == quadratic
    assert float(huber(jnp.float32(error))) == robust
    assert set(LOSSES) == {"squared", "huber"}


@pytest.mark.parametrize(("error", "slope"), [(-7.0, -1.0), (-0.5, -0.5), (0.25, 0.25), (5.0, 1.0)])
def test_slope_of_huber_is_clipped_at_one(error, slope):
    assert float(jax.grad(huber)(jnp.float32(error))) == slope
    assert float(jax.grad(squared)(jnp.float32(error))) == 2 * error

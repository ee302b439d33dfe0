"""What a Q-value is regressed on, and how far it is from that: for ONE example, the caller vmaps.

Names end in `_t` for the state that a transition leads to.
"""

import jax.numpy as jnp

from randq.types import Array, Bool, Float


def q_target(
    reward: Float[Array, ""],
    terminated: Bool[Array, ""],
    gamma: float | Float[Array, ""],
    values_t: Float[Array, " actions"],
    selector_t: Float[Array, " actions"],
) -> Float[Array, ""]:
    """r + gamma * values_t[argmax selector_t], without the second term after a termination.

    The selector is the values themselves for plain Q-learning (eq. 3), and the values of the
    learning network for double Q-learning.
    """
    return bootstrapped(reward, terminated, gamma, values_t[jnp.argmax(selector_t)])


def bootstrapped(
    reward: Float[Array, ""],
    terminated: Bool[Array, ""],
    gamma: float | Float[Array, ""],
    value_t: Float[Array, ""],
) -> Float[Array, ""]:
    """r + gamma * value_t, without the second term after a termination.

    For DDPG the value is that of the target actor's action (eq. 5).
    """
    future = jnp.where(terminated, 0.0, value_t)
    if not isinstance(gamma, float):
        gamma = jnp.asarray(gamma, future.dtype)
    return reward.astype(future.dtype) + gamma * future


def squared(error: Float[Array, ""]) -> Float[Array, ""]:
    """error^2, as in the paper's losses."""
    return error**2


def huber(error: Float[Array, ""]) -> Float[Array, ""]:
    """Quadratic up to 1, then linear."""
    size = jnp.abs(error)
    return jnp.where(size < 1, 0.5 * error**2, size - 0.5)


LOSSES = {"squared": squared, "huber": huber}

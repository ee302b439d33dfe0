"""What the Gaussian families share: exact divergences and densities, every constant kept."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from randq.large import LARGE, total
from randq.types import Array, Float, Scalar


def kl_to_prior(
    mean: Float[Array, "*shape"], log_std: Float[Array, "*shape"], prior_std: float
) -> Scalar:
    """KL(N(mean, std^2) || N(0, prior_std^2)), summed over the entries."""
    return (_kl if mean.size > LARGE else _kl.fun)(mean, log_std, prior_std)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _kl(mean: Float[Array, "*shape"], log_std: Float[Array, "*shape"], prior_std: float) -> Scalar:
    scaled = (jnp.exp(2 * log_std) + mean**2) / (2 * prior_std**2)
    return total(math.log(prior_std) - log_std + scaled - 0.5)


@_kl.defjvp
def _kl_jvp(
    prior_std: float, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Scalar, Scalar]:
    mean, log_std = primals
    # Written unlike the exponentials of a draw and its cost: of one that several operations share,
    # XLA makes an array, and to write and read that takes longer than to compute it again.
    variance = jnp.exp(0.5 * log_std) ** 4
    slope = mean * tangents[0] + (variance - prior_std**2) * tangents[1]
    return _kl(mean, log_std, prior_std), jnp.sum(slope) / prior_std**2


def spread(
    log_std: Float[Array, "*shape"], epsilon: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """What noise of this deviation adds: exp(log_std) * epsilon."""
    return (_spread if epsilon.size > LARGE else _spread.fun)(log_std, epsilon)


@jax.custom_jvp
def _spread(
    log_std: Float[Array, "*shape"], epsilon: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    return jnp.exp(log_std) * epsilon


@_spread.defjvp
def _spread_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # The result is its own derivative. With epsilon in it, XLA would make all numbers once more.
    value = _spread(*primals)
    return value, value * tangents[0]


def log_densities(
    x: Float[Array, " size"], mean: Float[Array, " size"], log_std: Float[Array, " size"]
) -> Float[Array, " size"]:
    """log N(x; mean, std^2) of each entry."""
    return standard_log_densities((x - mean) * jnp.exp(-log_std)) - log_std


def standard_log_densities(x: Float[Array, " size"]) -> Float[Array, " size"]:
    """log N(x; 0, 1) of each entry."""
    return -0.5 * x**2 - 0.5 * math.log(2 * math.pi)

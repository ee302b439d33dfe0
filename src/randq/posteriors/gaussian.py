"""What the Gaussian families share: exact divergences and densities, every constant kept."""

import math

import jax.numpy as jnp

from randq.types import Array, Float, Scalar


def kl_to_prior(
    mean: Float[Array, "*shape"], log_std: Float[Array, "*shape"], prior_std: float
) -> Scalar:
    """KL(N(mean, std^2) || N(0, prior_std^2)), summed over the entries."""
    scaled = (jnp.exp(2 * log_std) + mean**2) / (2 * prior_std**2)
    return jnp.sum(math.log(prior_std) - log_std + scaled - 0.5)


def log_density(
    x: Float[Array, " size"], mean: Float[Array, " size"], log_std: Float[Array, " size"]
) -> Scalar:
    """log N(x; mean, std^2), summed over the entries."""
    return standard_log_density((x - mean) * jnp.exp(-log_std)) - jnp.sum(log_std)


def standard_log_density(x: Float[Array, " size"]) -> Scalar:
    """log N(x; 0, 1), summed over the entries."""
    return jnp.sum(-0.5 * x**2 - 0.5 * math.log(2 * math.pi))

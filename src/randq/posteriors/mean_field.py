"""Independent Gaussian weights: Bayes by Backprop (Blundell et al.), hence BBQN (Lipton et al.)."""

from dataclasses import dataclass, replace
from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp

from randq.config import number, one_of
from randq.networks import Layer
from randq.noise import Supply
from randq.posteriors.base import Family, Init
from randq.posteriors.gaussian import kl_to_prior
from randq.posteriors.layerwise import (
    Layers,
    Layerwise,
    LocalLayerPosterior,
    NoiseScope,
    NoisyOutputs,
    randomise,
)
from randq.types import Array, Float, Key, Scalar


@dataclass(frozen=True)
class MeanField(Family):
    """A Gaussian for each weight, independent of all others; the cost is its exact KL."""

    initial_std: float = 0.25
    """Standard deviation of the weights before training, times 1/sqrt(inputs of the layer)."""
    prior_std: float = 1.0
    """Standard deviation of the Gaussian prior (the authors have 1)."""
    layers: Layers = "linear"
    """Which layers are random."""
    noise: NoiseScope = "batch"
    """One sample of the noise per batch (the paper), or per example (local reparametrisation)."""

    def __post_init__(self) -> None:
        number("initial_std", self.initial_std)
        number("prior_std", self.prior_std)
        one_of("layers", self.layers, get_args(Layers))
        one_of("noise", self.noise, get_args(NoiseScope))

    def build(self, init: Init, key: Key) -> Layerwise:
        def make(layer: Layer) -> MeanFieldLayer:
            # The inverse of softplus, so that training starts from the initial deviation.
            rho = jnp.log(jnp.expm1(self.initial_std * layer.fan_in**-0.5))
            return MeanFieldLayer(
                mean_layer=layer,
                weight_rho=jnp.full_like(layer.weight, rho),
                bias_rho=jnp.full_like(layer.bias, rho),
                prior_std=self.prior_std,
            )

        return Layerwise(randomise(init(key), self.layers, make), self.noise)


class MeanFieldLayer(LocalLayerPosterior):
    """w = mu + sigma * epsilon with sigma = softplus(rho), and likewise the bias."""

    mean_layer: Layer
    weight_rho: Float[Array, "..."]
    bias_rho: Float[Array, " out"]
    prior_std: float = eqx.field(static=True)

    def noise(self, supply: Supply) -> tuple[Float[Array, "..."], Float[Array, " out"]]:
        return supply.like(self.weight_rho), supply.like(self.bias_rho)

    def draw(self, noise: tuple[Float[Array, "..."], Float[Array, " out"]]) -> tuple[Layer, Scalar]:
        epsilon_weight, epsilon_bias = noise
        layer = self.mean_layer
        weight_std, bias_std = jax.nn.softplus(self.weight_rho), jax.nn.softplus(self.bias_rho)
        sampled = replace(
            layer,
            weight=layer.weight + weight_std * epsilon_weight,
            bias=layer.bias + bias_std * epsilon_bias,
        )
        cost = kl_to_prior(layer.weight, _log_softplus(self.weight_rho), self.prior_std)
        return sampled, cost + kl_to_prior(layer.bias, _log_softplus(self.bias_rho), self.prior_std)

    def sample_outputs(self, key: Key) -> NoisyOutputs:
        variance = replace(
            self.mean_layer,
            weight=jax.nn.softplus(self.weight_rho) ** 2,
            bias=jax.nn.softplus(self.bias_rho) ** 2,
        )
        return NoisyOutputs(self.mean_layer, variance, key)

    def mean(self) -> Layer:
        return self.mean_layer


def _log_softplus(rho: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(softplus(rho)), which is rho itself where softplus would underflow."""
    return jnp.where(rho < -30, rho, jnp.log(jax.nn.softplus(jnp.maximum(rho, -30))))

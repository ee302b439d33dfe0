"""Factorised Gaussian noise of learnt size (Fortunato et al., "Noisy Networks for Exploration")."""

from dataclasses import dataclass, replace
from typing import get_args

import jax.numpy as jnp

from randq.config import number, one_of
from randq.networks import Layer
from randq.noise import Supply
from randq.posteriors.base import Family, Init, zero_cost
from randq.posteriors.layerwise import LayerPosterior, Layers, Layerwise, randomise
from randq.types import Array, Float, Key, Scalar


@dataclass(frozen=True)
class Noisy(Family):
    """Noisy networks. There is no prior, hence no cost: the noise is learnt by the loss alone."""

    sigma0: float = 0.5
    """Initial size of the noise, times 1/sqrt(inputs of the layer)."""
    layers: Layers = "linear"
    """Which layers are random."""

    def __post_init__(self) -> None:
        number("sigma0", self.sigma0)
        one_of("layers", self.layers, get_args(Layers))

    def build(self, init: Init, key: Key) -> Layerwise:
        def make(layer: Layer) -> NoisyLayer:
            std = self.sigma0 * layer.fan_in**-0.5
            return NoisyLayer(
                mean_layer=layer,
                weight_std=jnp.full_like(layer.weight, std),
                bias_std=jnp.full_like(layer.bias, std),
            )

        return Layerwise(randomise(init(key), self.layers, make))


class NoisyLayer(LayerPosterior):
    """w = mu + sigma f(e_in) f(e_out)^T, b = mu + sigma f(e_out), with f(x) = sign(x) sqrt|x|."""

    mean_layer: Layer
    weight_std: Float[Array, "..."]
    bias_std: Float[Array, " out"]

    def noise(self, supply: Supply) -> tuple[Float[Array, " in"], Float[Array, " out"]]:
        out = self.bias_std.size
        return supply.take(self.weight_std.size // out), supply.take(out)

    def draw(self, noise: tuple[Float[Array, " in"], Float[Array, " out"]]) -> tuple[Layer, Scalar]:
        layer = self.mean_layer
        noise_in, noise_out = map(_signed_sqrt, noise)
        # A filter of a convolution is a column of a matrix: inputs are its pixels and channels.
        noise_weight = jnp.outer(noise_in, noise_out).reshape(layer.weight.shape)
        sampled = replace(
            layer,
            weight=layer.weight + self.weight_std * noise_weight,
            bias=layer.bias + self.bias_std * noise_out,
        )
        return sampled, zero_cost(layer)

    def mean(self) -> Layer:
        return self.mean_layer


def _signed_sqrt(epsilon: Float[Array, " size"]) -> Float[Array, " size"]:
    return jnp.sign(epsilon) * jnp.sqrt(jnp.abs(epsilon))

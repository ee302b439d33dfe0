"""A posterior family of your own: MC dropout (Gal and Ghahramani), over any network of randq.

A draw drops some inputs of each layer, the same for every example; the mean keeps them all.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from randq.config import within
from randq.networks import MLP, Layer
from randq.noise import Supply
from randq.posteriors import Family, LayerPosterior, Layerwise, randomise
from randq.posteriors.base import Init, zero_cost
from randq.posteriors.layerwise import Layers
from randq.types import Array, Key, Scalar


class DropoutLayer(LayerPosterior):
    """A layer some of whose inputs (or input channels) are missing, the others scaled up."""

    layer: Layer
    rate: float = eqx.field(static=True)

    def noise(self, supply: Supply) -> Array:
        weight = self.layer.weight  # [..., in, out]
        return supply.take(*(1,) * (weight.ndim - 2), weight.shape[-2], 1)

    def draw(self, noise: Array) -> tuple[Layer, Scalar]:
        kept = (norm.cdf(noise) >= self.rate).astype(noise.dtype)
        scaled = replace(self.layer, weight=self.layer.weight * kept / (1 - self.rate))
        return scaled, zero_cost(self.layer)

    def mean(self) -> Layer:
        return self.layer


@dataclass(frozen=True)
class MCDropout(Family):
    """Draws are the network with random units missing."""

    rate: float = 0.2
    layers: Layers = "linear"

    def __post_init__(self) -> None:
        within("rate", self.rate, 0.0, 0.99)

    def build(self, init: Init, key: Key) -> Layerwise:
        return Layerwise(randomise(init(key), self.layers, lambda x: DropoutLayer(x, self.rate)))


if __name__ == "__main__":
    posterior = MCDropout().build(lambda k: MLP.create(4, [64], 2, key=k), jax.random.key(0))
    x = jnp.ones(4)
    draws = jax.vmap(lambda k: posterior.sample(k)(x))(jax.random.split(jax.random.key(1), 1000))
    print(f"mean {posterior.mean()(x)}, draws {draws.mean(axis=0)} +- {draws.std(axis=0)}")

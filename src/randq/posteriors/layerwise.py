"""Posteriors that are a product over layers: a network with distributions in place of layers."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp

from randq import threefry
from randq.config import one_of, require
from randq.networks import Layer, Linear, Network, is_layer
from randq.noise import Supply, normals
from randq.posteriors.base import (
    Draw,
    Function,
    Members,
    OneNetwork,
    Posterior,
    zero_cost,
)
from randq.types import Array, Batch, Float, Int, Key, OneHot, Scalar

Layers = Literal["linear", "last", "all"]
"""Which layers are random: the fully connected ones, the last one, or all with convolutions."""

NoiseScope = Literal["batch", "example"]
"""What shares one sample of the noise in a loss: the whole batch (the paper) or nothing."""


class LayerPosterior(eqx.Module):
    """A distribution over the weights and biases of one layer.

    A draw is a deterministic function of noise, as in the paper, so that the noise of all layers
    can come from one call of the generator.
    """

    @abstractmethod
    def noise(self, supply: Supply) -> Any:
        """All the randomness of one draw, taken from a supply of standard normal numbers."""

    @abstractmethod
    def draw(self, noise: Any) -> tuple[Layer, Scalar]:
        """A plain layer, and what it costs."""

    @abstractmethod
    def mean(self) -> Layer:
        """The layer with all noise disabled."""


class LocalLayerPosterior(LayerPosterior):
    """A layer posterior that can also put its noise on the outputs, for one example at a time."""

    @abstractmethod
    def sample_outputs(self, key: Key) -> Function:
        """The local reparametrisation: each output distributed as random weights make it.

        Outputs of a linear layer are independent under random weights too; those of a convolution
        at different places are not, and here they are.
        """


class NoisyOutputs(eqx.Module):
    """A layer of random weights seen through its outputs: Gaussian, given one input."""

    mean: Function
    variance: Layer  # of the weights and biases, so that it maps squared inputs to variances
    key: Key

    def __call__(self, x: Array | OneHot) -> Array:
        if isinstance(x, OneHot):
            x = x.dense(self.variance.weight.dtype)
        mean = self.mean(x)
        epsilon = threefry.normal(self.key, mean.shape, mean.dtype)
        return mean + jnp.sqrt(self.variance(x * x)) * epsilon


class Layerwise(Posterior):
    """A network in which some layers are distributions over layers; the others are plain."""

    network: Network
    noise: NoiseScope = eqx.field(static=True, default="batch")

    def __check_init__(self) -> None:
        nodes = jax.tree.leaves(self.network, is_leaf=_is_random)
        local = all(isinstance(n, LocalLayerPosterior) for n in nodes if _is_random(n))
        require(self.noise == "batch" or local, "noise", self.noise, "batch, for these layers")

    @property
    def num_members(self) -> int:
        return 1

    def sample(self, key: Key) -> Draw:
        nodes = jax.tree.leaves(self.network, is_leaf=_is_random)
        random = [node for node in nodes if _is_random(node)]
        cost = zero_cost(self.network)
        noises = iter(normals(lambda supply: [n.noise(supply) for n in random], key, cost.dtype))

        def drawn(node: Any) -> Any:
            nonlocal cost
            if not _is_random(node):
                return node
            layer, layer_cost = node.draw(next(noises))
            cost = cost + layer_cost
            return layer

        return Draw(jax.tree.map(drawn, self.network, is_leaf=_is_random), cost)

    def mean(self) -> Network:
        return jax.tree.map(
            lambda node: node.mean() if _is_random(node) else node, self.network, is_leaf=_is_random
        )

    def members(self, key: Key | None) -> Members:
        if key is None:
            return OneNetwork(network=self.mean(), cost=zero_cost(self.network))
        if self.noise == "example":
            cost_key, noise_key = threefry.split(key)
            cost = self.sample(cost_key).cost
            return _PerExample(network=self.network, key=noise_key, cost=cost)
        draw = self.sample(key)
        return OneNetwork(network=draw.network, cost=draw.cost)

    def settled(self) -> "Layerwise":
        return Layerwise(self.mean())

    def masks(self, key: Key, batch: int) -> Float[Array, "members batch"]:
        return jnp.ones((1, batch), zero_cost(self.network).dtype)

    def evaluator(self) -> Network:
        return self.mean()

    def condition(
        self, xs: Batch, outputs: Int[Array, " batch"], targets: Float[Array, " batch"]
    ) -> Self:
        return self


class _PerExample(Members):
    """Fresh noise for each example of a batch; the cost is that of one separate draw."""

    network: Network
    key: Key
    cost: Scalar

    def __call__(self, xs: Batch) -> Float[Array, "members batch out"]:
        def one(key: Key, x: Any) -> Float[Array, " out"]:
            keys = iter(threefry.split(key, len(jax.tree.leaves(self.network))))
            noisy = jax.tree.map(
                lambda node: node.sample_outputs(next(keys)) if _is_random(node) else node,
                self.network,
                is_leaf=_is_random,
            )
            return noisy(x)

        batch = jax.tree.leaves(xs)[0].shape[0]
        return jax.vmap(one)(threefry.split(self.key, batch), xs)[None]


def randomise(network: Network, layers: Layers, make: Callable[[Layer], LayerPosterior]) -> Network:
    """Put the distribution `make(layer)` in place of each chosen layer."""
    one_of("layers", layers, get_args(Layers))

    def chosen(node: object) -> bool:
        if layers == "last":
            return node is network.head
        return is_layer(node) if layers == "all" else isinstance(node, Linear)

    return jax.tree.map(
        lambda node: make(node) if chosen(node) else node, network, is_leaf=is_layer
    )


def _is_random(node: object) -> bool:
    return isinstance(node, LayerPosterior)

"""Deterministic networks for ONE example: the caller vmaps.

A network is `head(features(x))`: a linear head on a vector of features. Posteriors rely on that
(the last layer is the head), and on every layer with weights being a `Linear` or a `Conv2d`;
nothing else about a network matters to them.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from randq.config import floating, require, whole
from randq.noise import Supply, uniforms
from randq.types import Array, Float, Int32, Key, OneHot, Shaped


class Linear(eqx.Module):
    """`x @ weight + bias`."""

    weight: Float[Array, "in out"]
    bias: Float[Array, " out"]

    @classmethod
    def create(
        cls, in_features: int, out_features: int, *, key: Key, dtype: Any = jnp.float32
    ) -> "Linear":
        """Weights and biases uniform in +-1/sqrt(in), as Fortunato et al. and PyTorch have it."""
        dtype = floating("dtype", dtype)
        return uniforms(lambda supply: cls.supplied(in_features, out_features, supply), key, dtype)

    @classmethod
    def supplied(cls, in_features: int, out_features: int, supply: Supply) -> "Linear":
        """The same from a supply of uniform numbers, which several layers share."""
        whole("in_features", in_features, at_least=1)
        whole("out_features", out_features, at_least=1)
        bound = in_features**-0.5
        return cls(
            bound * supply.take(in_features, out_features), bound * supply.take(out_features)
        )

    @property
    def fan_in(self) -> int:
        return self.weight.shape[0]

    def __call__(self, x: Float[Array, " in"] | OneHot) -> Float[Array, " out"]:
        size = self.weight.shape[0]
        shape = (x.size,) if isinstance(x, OneHot) else x.shape
        require(shape == (size,), "input of a linear layer", shape, f"shape ({size},)")
        product = _row(self.weight, x.index) if isinstance(x, OneHot) else x @ self.weight
        return product + self.bias


@jax.custom_jvp
def _row(weight: Float[Array, "in out"], index: Int32[Array, ""]) -> Float[Array, " out"]:
    """`OneHot(index) @ weight`."""
    return weight.at[index].get(mode="fill", fill_value=0)


@_row.defjvp
def _row_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    # Looking up a row is cheap; adding up gradients row by row is not, and a product does it.
    weight, index = primals
    dense = jax.nn.one_hot(index, weight.shape[0], dtype=weight.dtype)
    return _row(weight, index), dense @ tangents[0]


class Conv2d(eqx.Module):
    """A convolution over one image of height x width x channels, without padding."""

    weight: Float[Array, "kernel_h kernel_w in out"]
    bias: Float[Array, " out"]
    stride: int = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        *,
        key: Key,
        dtype: Any = jnp.float32,
    ) -> "Conv2d":
        """Weights and biases uniform in +-1/sqrt(kernel * kernel * in)."""
        dtype = floating("dtype", dtype)
        return uniforms(
            lambda supply: cls.supplied(in_channels, out_channels, kernel, stride, supply),
            key,
            dtype,
        )

    @classmethod
    def supplied(
        cls, in_channels: int, out_channels: int, kernel: int, stride: int, supply: Supply
    ) -> "Conv2d":
        """The same from a supply of uniform numbers, which several layers share."""
        whole("in_channels", in_channels, at_least=1)
        whole("out_channels", out_channels, at_least=1)
        whole("kernel", kernel, at_least=1)
        whole("stride", stride, at_least=1)
        bound = (kernel * kernel * in_channels) ** -0.5
        weight = bound * supply.take(kernel, kernel, in_channels, out_channels)
        return cls(weight, bound * supply.take(out_channels), stride)

    @property
    def fan_in(self) -> int:
        return self.weight.size // self.bias.size

    def __call__(self, x: Float[Array, "h w in"]) -> Float[Array, "new_h new_w out"]:
        channels = self.weight.shape[2]
        require(
            x.ndim == 3 and x.shape[2] == channels,
            "input of a convolution",
            x.shape,
            f"shape (height, width, {channels})",
        )
        out = jax.lax.conv_general_dilated(
            x[None],
            self.weight,
            window_strides=(self.stride, self.stride),
            padding="VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return out[0] + self.bias[None, None, :]


Layer = Linear | Conv2d
"""A layer with weights: what a layer posterior is a distribution over."""


def is_layer(node: object) -> bool:
    return isinstance(node, Linear | Conv2d)


class Network(eqx.Module):
    """A value network for one example. Implement `features`, and give it a `head`."""

    head: eqx.AbstractVar[Linear]

    @abstractmethod
    def features(self, x: Any) -> Float[Array, " features"]:
        """Everything before the last layer."""

    def __call__(self, x: Any) -> Float[Array, " out"]:
        return self.head(self.features(x))


@dataclass(frozen=True)
class Scaling:
    """Inputs brought from known bounds to [-1, 1]; those without bounds are left alone."""

    centre: tuple[float, ...]
    half_width: tuple[float, ...]

    @classmethod
    def between(cls, low: Sequence[float | None], high: Sequence[float | None]) -> "Scaling":
        """The scaling for bounds, of which some may be missing (or as good as that)."""
        pairs = [
            (-1.0, 1.0) if a is None or b is None or not 0 < b - a < 1e6 else (a, b)
            for a, b in zip(low, high, strict=True)
        ]
        return cls(tuple((a + b) / 2 for a, b in pairs), tuple((b - a) / 2 for a, b in pairs))

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " in"]:
        return (x - jnp.array(self.centre, x.dtype)) / jnp.array(self.half_width, x.dtype)


class MLP(Network):
    """Fully connected layers with an activation between them. Inputs of any shape are flattened."""

    hidden: tuple[Linear, ...]
    head: Linear
    activation: Callable[[Array], Array] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    scaling: Scaling | None = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        *,
        key: Key,
        activation: Callable[[Array], Array] = jax.nn.relu,
        scaling: Scaling | None = None,
        dtype: Any = jnp.float32,
    ) -> "MLP":
        """Layers as `Linear.create` makes them."""

        def make(supply: Supply) -> MLP:
            *layers, head = _chain([in_features, *hidden, out_features], supply)
            return cls(
                hidden=tuple(layers),
                head=head,
                activation=activation,
                dtype=supply.dtype,
                scaling=scaling,
            )

        return uniforms(make, key, floating("dtype", dtype))

    def features(self, x: Float[Array, "..."] | OneHot) -> Float[Array, " features"]:
        values = x if isinstance(x, OneHot) else x.reshape(-1).astype(self.dtype)
        if self.scaling is not None and not isinstance(values, OneHot):
            values = self.scaling(values)
        for layer in self.hidden:
            values = self.activation(layer(values))
        return values.dense(self.dtype) if isinstance(values, OneHot) else values


class ConvNet(Network):
    """Convolutions, then fully connected layers, with ReLU between. Bytes are scaled to [0, 1].

    Channels come last, unless the first axis of an image is shorter than the last: then they are
    there, as in a stack of frames.
    """

    convolutions: tuple[Conv2d, ...]
    hidden: tuple[Linear, ...]
    head: Linear
    dtype: Any = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        image: tuple[int, int, int],
        filters: Sequence[tuple[int, int, int]],
        hidden: Sequence[int],
        out_features: int,
        *,
        key: Key,
        dtype: Any = jnp.float32,
    ) -> "ConvNet":
        """`filters` lists (channels, kernel, stride).

        DQN in Nature had (32, 8, 4), (64, 4, 2), (64, 3, 1), and 512 hidden units.
        """
        require(len(image) == 3, "image", image, "(height, width, channels)")
        for size in image:
            whole("image", size, at_least=1)

        def make(supply: Supply) -> ConvNet:
            height, width, channels = image if image[2] <= image[0] else (*image[1:], image[0])
            convolutions = []
            for out_channels, kernel, stride in filters:
                layer = Conv2d.supplied(channels, out_channels, kernel, stride, supply)
                convolutions.append(layer)
                height, width = ((size - kernel) // stride + 1 for size in (height, width))
                fits = f"a size that fits the filters {tuple(filters)}"
                require(min(height, width) > 0, "image", image, fits)
                channels = out_channels
            sizes = [height * width * channels, *hidden, out_features]
            *layers, head = _chain(sizes, supply)
            return cls(
                convolutions=tuple(convolutions),
                hidden=tuple(layers),
                head=head,
                dtype=supply.dtype,
            )

        return uniforms(make, key, floating("dtype", dtype))

    def features(self, x: Shaped[Array, "h w c"]) -> Float[Array, " features"]:
        x = x if x.shape[2] <= x.shape[0] else jnp.moveaxis(x, 0, 2)
        x = x.astype(self.dtype) / 255 if x.dtype == jnp.uint8 else x.astype(self.dtype)
        for convolution in self.convolutions:
            x = jax.nn.relu(convolution(x))
        x = x.reshape(-1)
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return x


def _chain(sizes: Sequence[int], supply: Supply) -> list[Linear]:
    return [Linear.supplied(size_in, size_out, supply) for size_in, size_out in pairwise(sizes)]

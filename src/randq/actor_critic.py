"""The networks of DDPG for ONE example (the paper, appendix C): the caller vmaps.

Hidden layers are linear, then normalised, then ReLU. A critic takes an observation and an action;
the action joins at its second hidden layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from randq.config import floating, require, whole
from randq.networks import Linear, Network
from randq.noise import Supply, uniforms
from randq.types import Array, Float, Float32, Key, OneHot, Scalar, Shaped

SMALL = 3e-3
"""Bound of an actor's last weights before training (Lillicrap et al.): no action is saturated."""
FURTHEST = 5.0
"""Bound of a normalised observation (Plappert et al.)."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of actions, as plain numbers. Networks work in units of [-1, 1]."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def unit(self, action: Float[Array, " n"]) -> Float[Array, " n"]:
        """From the bounds to [-1, 1]."""
        centre, half = self._centre_and_half(action.dtype)
        return (action - centre) / half

    def action(self, unit: Float[Array, " n"]) -> Float[Array, " n"]:
        """From [-1, 1] to the bounds."""
        centre, half = self._centre_and_half(unit.dtype)
        return centre + half * unit

    def within(self, action: Float[Array, " n"]) -> Float32[Array, " n"]:
        """The action as an environment takes it: rounding moves it out of no bound."""
        low, high = (jnp.array(bound, jnp.float32) for bound in (self.low, self.high))
        return jnp.clip(action.astype(jnp.float32), low, high)

    def _centre_and_half(self, dtype: Any) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        pairs = list(zip(self.low, self.high, strict=True))
        centre, half = [(a + b) / 2 for a, b in pairs], [(b - a) / 2 for a, b in pairs]
        return jnp.array(centre, dtype), jnp.array(half, dtype)


class LayerNorm(eqx.Module):
    """Mean 0 and variance 1 over the units of a layer, then a learnt scale and shift."""

    scale: Float[Array, " n"]
    shift: Float[Array, " n"]

    @classmethod
    def create(cls, size: int, dtype: Any) -> "LayerNorm":
        return cls(jnp.ones(size, dtype), jnp.zeros(size, dtype))

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        # Means are products: a sum over the units of a batch is several small operations of XLA.
        share = jnp.full(x.shape, 1 / x.size, x.dtype)
        centred = x - x @ share
        variance = (centred * centred) @ share
        return self.scale * centred * jax.lax.rsqrt(variance + 1e-5) + self.shift


class Block(eqx.Module):
    """One hidden layer."""

    linear: Linear
    norm: LayerNorm | None

    @classmethod
    def supplied(cls, size_in: int, size_out: int, layer_norm: bool, supply: Supply) -> "Block":
        norm = LayerNorm.create(size_out, supply.dtype) if layer_norm else None
        return cls(Linear.supplied(size_in, size_out, supply), norm)

    def __call__(self, x: Float[Array, " in"] | OneHot) -> Float[Array, " out"]:
        values = self.linear(x)
        return jax.nn.relu(values if self.norm is None else self.norm(values))


class Actor(eqx.Module):
    """A deterministic policy: an observation in, an action within its bounds out."""

    blocks: tuple[Block, ...]
    head: Linear
    bounds: Bounds = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        in_features: int,
        hidden: Sequence[int],
        bounds: Bounds,
        *,
        key: Key,
        layer_norm: bool = True,
        dtype: Any = jnp.float32,
    ) -> "Actor":
        """Hidden layers as `Linear.create` makes them; the last begins close to zero."""
        _check(hidden)

        def make(supply: Supply) -> Actor:
            blocks, size = [], in_features
            for units in hidden:
                blocks.append(Block.supplied(size, units, layer_norm, supply))
                size = units
            head = Linear.supplied(size, len(bounds.low), supply)
            head = jax.tree.map(lambda x: SMALL * size**0.5 * x, head)
            return cls(tuple(blocks), head, bounds)

        return uniforms(make, key, floating("dtype", dtype))

    def unit(self, x: Shaped[Array, "..."] | OneHot) -> Float[Array, " n"]:
        """The action in units of [-1, 1]."""
        values = _vector(x, self.head.weight.dtype)
        for block in self.blocks:
            values = block(values)
        assert not isinstance(values, OneHot)
        return jnp.tanh(self.head(values))

    def __call__(self, x: Shaped[Array, "..."] | OneHot) -> Float[Array, " n"]:
        return self.bounds.action(self.unit(x))


class Critic(Network):
    """A value network whose input is a pair: an observation, and an action within its bounds."""

    blocks: tuple[Block, ...]
    head: Linear
    bounds: Bounds = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        in_features: int,
        hidden: Sequence[int],
        bounds: Bounds,
        *,
        key: Key,
        layer_norm: bool = True,
        dtype: Any = jnp.float32,
    ) -> "Critic":
        """Layers as `Linear.create` makes them. With one hidden layer, the action joins there."""
        _check(hidden)

        def make(supply: Supply) -> Critic:
            blocks, size = [], in_features
            for i, units in enumerate(hidden):
                joining = len(bounds.low) if i == _joint(hidden) else 0
                blocks.append(Block.supplied(size + joining, units, layer_norm, supply))
                size = units
            head = Linear.supplied(size, 1, supply)
            return cls(blocks=tuple(blocks), head=head, bounds=bounds, dtype=supply.dtype)

        return uniforms(make, key, floating("dtype", dtype))

    def features(
        self, x: tuple[Shaped[Array, "..."] | OneHot, Float[Array, " n"]]
    ) -> Float[Array, " features"]:
        observation, action = x
        unit = self.bounds.unit(action.astype(self.dtype))
        values = _vector(observation, self.dtype)
        for i, block in enumerate(self.blocks):
            if i == _joint(self.blocks):
                dense = values.dense(self.dtype) if isinstance(values, OneHot) else values
                values = jnp.concatenate([dense, unit])
            values = block(values)
        assert not isinstance(values, OneHot)
        return values


class Statistics(eqx.Module):
    """Mean and variance of the observations so far, to bring new ones to mean 0 and variance 1."""

    count: Scalar
    mean: Float[Array, " in"]
    variance: Float[Array, " in"]

    @classmethod
    def none(cls, size: int, dtype: Any) -> "Statistics":
        """Of no observation yet: those that come are left as they are."""
        return cls(jnp.zeros((), dtype), jnp.zeros(size, dtype), jnp.ones(size, dtype))

    def __call__(self, x: Shaped[Array, "..."]) -> Float[Array, " in"]:
        """One observation, normalised; no number is further from 0 than `FURTHEST`."""
        values = x.reshape(-1).astype(self.mean.dtype) - self.mean
        return jnp.clip(values * jax.lax.rsqrt(self.variance + 1e-6), -FURTHEST, FURTHEST)

    def merged(self, xs: Shaped[Array, "batch ..."]) -> "Statistics":
        """With a batch of further observations (Chan et al.)."""
        values = xs.reshape(xs.shape[0], -1).astype(self.mean.dtype)
        mean, variance = jnp.mean(values, axis=0), jnp.var(values, axis=0)
        count = self.count + xs.shape[0]
        share, moved = xs.shape[0] / count, mean - self.mean
        between = share * (1 - share) * moved**2
        return Statistics(
            count,
            self.mean + share * moved,
            (1 - share) * self.variance + share * variance + between,
        )


def _joint(hidden: Sequence[Any]) -> int:
    """The hidden layer at which the action joins."""
    return min(1, len(hidden) - 1)


def _check(hidden: Sequence[int]) -> None:
    require(len(hidden) > 0, "hidden", tuple(hidden), "at least one layer")
    for units in hidden:
        whole("hidden", units, at_least=1)


def _vector(x: Shaped[Array, "..."] | OneHot, dtype: Any) -> Float[Array, " in"] | OneHot:
    return x if isinstance(x, OneHot) else x.reshape(-1).astype(dtype)

"""An ensemble of heads (Osband et al. 2016), with fixed random priors or without (2018)."""

from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp

from randq import threefry
from randq.config import one_of, require, whole, within
from randq.networks import Conv2d, Network, is_layer
from randq.posteriors.base import (
    Draw,
    Family,
    Frozen,
    Function,
    Init,
    Members,
    Posterior,
    zero_cost,
)
from randq.types import Array, Batch, Float, Int, Key, Scalar

Shared = Literal["nothing", "convolutions", "torso"]
"""What the heads share: nothing, the convolutions, or all layers but the last."""


@dataclass(frozen=True)
class Bootstrap(Family):
    """K heads, each trained on its own share of the data; a draw is one of them."""

    heads: int = 10
    """Number K of heads."""
    shared: Shared = "torso"
    """What the heads share: nothing, convolutions, or torso (all layers but the last)."""
    mask_probability: float = 0.5
    """Chance that a head learns from a new example."""
    prior_scale: float = 0.0
    """Weight of the frozen random network that is added to each head; 0 for none."""

    def __post_init__(self) -> None:
        whole("heads", self.heads, at_least=1)
        one_of("shared", self.shared, get_args(Shared))
        within("mask_probability", self.mask_probability, 0.0, 1.0)
        require(self.mask_probability > 0, "mask_probability", self.mask_probability, "more than 0")
        within("prior_scale", self.prior_scale, 0.0, 1e6)

    def build(self, init: Init, key: Key) -> "BootstrapPosterior":
        shared_key, heads_key, prior_key = threefry.split(key, 3)

        def stacked(k: Key) -> Network:
            return eqx.filter_vmap(init)(threefry.split(k, self.heads))

        own, _ = self._split(stacked(heads_key))
        _, shared = self._split(init(shared_key))
        prior = Frozen(stacked(prior_key), constant=True) if self.prior_scale else None
        heads = Heads(own, shared, prior, self.prior_scale)
        return BootstrapPosterior(heads, self.mask_probability)

    def _split(self, network: Network) -> tuple[Network, Network]:
        """What each head has for itself, and what all share, each without the other's arrays."""

        def is_own(node: object) -> bool:
            if self.shared == "torso":
                return node is network.head
            return self.shared == "nothing" or not isinstance(node, Conv2d)

        return eqx.partition(network, jax.tree.map(is_own, network, is_leaf=is_layer))


class WithPrior(eqx.Module):
    """A trained network plus a fixed random one."""

    network: Network
    prior: Frozen[Network]
    scale: float = eqx.field(static=True)

    def __call__(self, x: Any) -> Float[Array, " out"]:
        return self.network(x) + self.scale * self.prior.value(x)


class Heads(eqx.Module):
    """K networks, as one function of one example."""

    own: Network  # arrays have a leading axis of K
    shared: Network  # one copy, so that its outputs are computed once for all heads
    prior: Frozen[Network] | None  # leading axis of K
    prior_scale: float = eqx.field(static=True)

    @property
    def count(self) -> int:
        return int(jax.tree.leaves(self.own)[0].shape[0])

    def head(self, own: Network, prior: Frozen[Network] | None) -> Function:
        """One network from one entry of the stacks."""
        network: Network = eqx.combine(own, self.shared)
        return network if prior is None else WithPrior(network, prior, self.prior_scale)

    def __getitem__(self, index: Int[Array, ""]) -> Function:
        return self.head(*jax.tree.map(lambda x: x[index], (self.own, self.prior)))

    def __call__(self, x: Any) -> Float[Array, "members out"]:
        return eqx.filter_vmap(lambda *entry: self.head(*entry)(x))(self.own, self.prior)


class _Average(eqx.Module):
    heads: Heads

    def __call__(self, x: Any) -> Float[Array, " out"]:
        return jnp.mean(self.heads(x), axis=0)


class _Vote(eqx.Module):
    """How many heads prefer each output; ties go to the larger average value."""

    heads: Heads

    def __call__(self, x: Any) -> Float[Array, " out"]:
        values = self.heads(x)
        votes = jnp.sum(jax.nn.one_hot(values.argmax(axis=1), values.shape[1]), axis=0)
        average = jnp.mean(values, axis=0) - jnp.mean(values, axis=0).min()
        spread = jnp.maximum(average.max(), jnp.finfo(average.dtype).tiny)
        return votes.astype(values.dtype) + 0.5 * average / spread


class _AllHeads(Members):
    heads: Heads
    cost: Scalar

    def __call__(self, xs: Batch) -> Float[Array, "members batch out"]:
        return jax.vmap(self.heads, out_axes=1)(xs)


class BootstrapPosterior(Posterior):
    """Equal weight on each of K networks."""

    heads: Heads
    mask_probability: float = eqx.field(static=True)

    @property
    def num_members(self) -> int:
        return self.heads.count

    def sample(self, key: Key) -> Draw:
        index = jax.random.randint(key, (), 0, self.heads.count)
        return Draw(self.heads[index], zero_cost(self.heads))

    def mean(self) -> Function:
        return _Average(self.heads)

    def members(self, key: Key | None) -> Members:
        return _AllHeads(heads=self.heads, cost=zero_cost(self.heads))

    def settled(self) -> Self:
        return self

    def masks(self, key: Key, batch: int) -> Float[Array, "members batch"]:
        shape = (self.heads.count, batch)
        return jax.random.bernoulli(key, self.mask_probability, shape).astype(
            zero_cost(self.heads).dtype
        )

    def evaluator(self) -> Function:
        return _Vote(self.heads)

    def condition(
        self, xs: Batch, outputs: Int[Array, " batch"], targets: Float[Array, " batch"]
    ) -> Self:
        return self

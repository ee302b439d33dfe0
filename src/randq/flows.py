"""Masked RealNVP with the stable update of inverse autoregressive flows (the paper, section 3).

One step moves the entries of z that its Bernoulli mask m leaves free, by amounts that depend on the
entries it keeps:

    h = tanh(a(m * z)),  mu = b(h),  sigma = sigmoid(c(h))
    f(z) = m * z + (1 - m) * (z * sigma + (1 - sigma) * mu),   log |det df/dz| = (1 - m)^T log sigma
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from randq.config import floating, whole
from randq.networks import Linear
from randq.noise import Supply, uniforms
from randq.types import Array, Float, Key, Scalar

Masks = Float[Array, "steps size"]


class RealNVPStep(eqx.Module):
    """One step; a, b and c are the paper's linear maps."""

    a: Linear
    b: Linear
    c: Linear

    def __call__(
        self, z: Float[Array, " size"], mask: Float[Array, " size"]
    ) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        """f(z), and what each entry adds to the logarithm of |det df/dz|: together because they
        share the network's pass, and not summed because there are more such terms to add up."""
        shift, gate = self._shift_and_gate(mask * z)
        sigma = jax.nn.sigmoid(gate)
        moved = z * sigma + (1 - sigma) * shift
        # log_sigmoid rather than log(sigmoid): a closed gate must not give -inf.
        return mask * z + (1 - mask) * moved, (1 - mask) * jax.nn.log_sigmoid(gate)

    def inverse(
        self, z: Float[Array, " size"], mask: Float[Array, " size"]
    ) -> tuple[Float[Array, " size"], Scalar]:
        """f^-1(z) and the log-determinant of the inverse, for a mask of zeros and ones."""
        shift, gate = self._shift_and_gate(mask * z)
        sigma = jax.nn.sigmoid(gate)
        moved = (z - (1 - sigma) * shift) / sigma
        # A choice, not a product: where a gate is closed, moved is infinite.
        return jnp.where(mask > 0, z, moved), -jnp.sum((1 - mask) * jax.nn.log_sigmoid(gate))

    def _shift_and_gate(
        self, kept: Float[Array, " size"]
    ) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        h = jnp.tanh(self.a(kept))
        return self.b(h), self.c(h)


class Flow(eqx.Module):
    """f_K o ... o f_1 for any K >= 0. The masks are an argument: each draw has fresh ones."""

    steps: tuple[RealNVPStep, ...]

    @classmethod
    def create(
        cls,
        size: int,
        steps: int,
        hidden: int,
        *,
        gate: float = 0.0,
        key: Key,
        dtype: Any = jnp.float32,
    ) -> "Flow":
        dtype = floating("dtype", dtype)
        return uniforms(
            lambda supply: cls.supplied(size, steps, hidden, supply, gate=gate), key, dtype
        )

    @classmethod
    def supplied(
        cls, size: int, steps: int, hidden: int, supply: Supply, *, gate: float = 0.0
    ) -> "Flow":
        """The same from a supply of uniform numbers, which several flows share. The gates of all
        steps begin around sigmoid(gate): with open ones a flow begins as the identity."""
        whole("flow size", size, at_least=1)
        whole("flow steps", steps, at_least=0)
        whole("flow hidden units", hidden, at_least=1)

        def step() -> RealNVPStep:
            a = Linear.supplied(size, hidden, supply)
            b = Linear.supplied(hidden, size, supply)
            c = Linear.supplied(hidden, size, supply)
            return RealNVPStep(a, b, replace(c, bias=c.bias + gate))

        return cls(tuple(step() for _ in range(steps)))

    def masks(self, supply: Supply, size: int) -> Masks:
        """Bernoulli(1/2) masks from a supply of normal numbers, one row a step."""
        return (supply.take(len(self.steps), size) > 0).astype(supply.dtype)

    def mean_masks(self, like: Float[Array, " size"]) -> Masks:
        """The masks' mean, which the noise-free draw uses."""
        return jnp.full((len(self.steps), *like.shape), 0.5, like.dtype)

    def __call__(
        self, z: Float[Array, " size"], masks: Masks
    ) -> tuple[Float[Array, " size"], Scalar]:
        """z_K and the sum of the log-determinants."""
        z, log_dets = self.by_entry(z, masks)
        return z, jnp.sum(log_dets)

    def by_entry(
        self, z: Float[Array, " size"], masks: Masks
    ) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        """z_K, and what each entry adds to the log-determinants of all steps."""
        total = jnp.zeros_like(z)
        for step, mask in zip(self.steps, masks, strict=True):
            z, log_dets = step(z, mask)
            total = total + log_dets
        return z, total

    def inverse(
        self, z: Float[Array, " size"], masks: Masks
    ) -> tuple[Float[Array, " size"], Scalar]:
        """z_0 from z_K for masks of zeros and ones, and the log-determinant of that map."""
        total = jnp.zeros((), z.dtype)
        for step, mask in reversed(list(zip(self.steps, masks, strict=True))):
            z, log_det = step.inverse(z, mask)
            total = total + log_det
        return z, total

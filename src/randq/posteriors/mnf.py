"""Multiplicative normalizing flows (Louizos and Welling, and section 3 of the paper).

w_ij ~ N(z_i mu_ij, sigma_ij^2) with z = NF(z_0): one random factor for each input of a layer (for
each filter of a convolution), made rich by a flow. Integrating z out gives weights that depend on
each other. The KL to the prior is then intractable; an auxiliary posterior r(z | w) bounds it.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import equinox as eqx
import jax.numpy as jnp

from randq import threefry
from randq.config import number, one_of, whole, within
from randq.flows import Flow, Masks
from randq.networks import Conv2d, Layer, Linear
from randq.noise import Supply, normals, uniforms
from randq.posteriors.base import Family, Init
from randq.posteriors.gaussian import (
    kl_to_prior,
    log_densities,
    spread,
    standard_log_densities,
)
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
class MNF(Family):
    """Multiplicative normalizing flows; the cost is one sample of the exact bound on the KL."""

    flow_steps: int = 1
    """Steps K of the flow q(z); 0 leaves z Gaussian."""
    auxiliary_steps: int = 1
    """Steps of the inverse flow of the auxiliary posterior r(z | w)."""
    flow_hidden: int = 16
    """Hidden units in each step of both flows."""
    initial_std: float = 0.25
    """Standard deviation of the weights, given z, before training, times 1/sqrt(inputs)."""
    initial_z_std: float = 0.1
    """Standard deviation of z_0 before training."""
    initial_z_mean: float = 1.0
    """Mean of z_0 before training ..."""
    initial_z_spread: float = 0.0
    """... and how far, at most, its entries start from that."""
    initial_gate: float = 0.0
    """Where the gates of both flows begin, before their sigmoid; with large values masks matter
    little, and the flows begin as the identity."""
    prior_std: float = 1.0
    """Standard deviation of the Gaussian prior over weights (the authors have 1)."""
    layers: Layers = "linear"
    """Which layers are random."""
    noise: NoiseScope = "batch"
    """One sample of the noise per batch (the paper), or per example (local reparametrisation)."""

    def __post_init__(self) -> None:
        whole("flow_steps", self.flow_steps, at_least=0)
        whole("auxiliary_steps", self.auxiliary_steps, at_least=0)
        whole("flow_hidden", self.flow_hidden, at_least=1)
        number("initial_std", self.initial_std)
        number("initial_z_std", self.initial_z_std)
        number("prior_std", self.prior_std)
        within("initial_z_mean", self.initial_z_mean, -10.0, 10.0)
        within("initial_z_spread", self.initial_z_spread, 0.0, 10.0)
        within("initial_gate", self.initial_gate, -10.0, 10.0)
        one_of("layers", self.layers, get_args(Layers))
        one_of("noise", self.noise, get_args(NoiseScope))

    def build(self, init: Init, key: Key) -> Layerwise:
        network_key, flows_key = threefry.split(key)
        network = init(network_key)
        network = uniforms(
            lambda supply: randomise(network, self.layers, lambda x: self._layer(x, supply)),
            flows_key,
            network.head.weight.dtype,
        )
        return Layerwise(network, self.noise)

    def _layer(self, layer: Layer, supply: Supply) -> "MNFLayer":
        size, dtype = _num_factors(layer), layer.weight.dtype
        log_std = jnp.log(self.initial_std * layer.fan_in**-0.5)

        def flow(steps: int) -> Flow:
            return Flow.supplied(size, steps, self.flow_hidden, supply, gate=self.initial_gate)

        return MNFLayer(
            mean_layer=layer,
            weight_log_std=jnp.full_like(layer.weight, log_std),
            bias_log_std=jnp.full_like(layer.bias, log_std),
            z0_mean=self.initial_z_mean + self.initial_z_spread * supply.take(size),
            z0_log_std=jnp.full((size,), jnp.log(self.initial_z_std), dtype),
            flow=flow(self.flow_steps),
            auxiliary=Auxiliary(
                c=size**-0.5 * supply.take(size),
                b1=0.1 * supply.take(size),
                b2=0.1 * supply.take(size),
                flow=flow(self.auxiliary_steps),
            ),
            prior_std=self.prior_std,
        )


class NoiseSample(NamedTuple):
    """All the randomness of one draw of one layer."""

    epsilon_z: Float[Array, " z"]
    epsilon_weight: Float[Array, "..."]
    epsilon_bias: Float[Array, " out"]
    masks: Masks
    auxiliary_masks: Masks


class Auxiliary(eqx.Module):
    """r(z | w): a Gaussian whose parameters depend on the weights, through an inverse flow."""

    c: Float[Array, " z"]
    b1: Float[Array, " z"]
    b2: Float[Array, " z"]
    flow: Flow

    def log_densities(
        self, z: Float[Array, " z"], rows: Float[Array, "z other"], masks: Masks
    ) -> Float[Array, " z"]:
        """What each entry adds to log r(z_K | w), where row i of the weights is the one that z_i
        multiplies."""
        z0, log_dets = self.flow.by_entry(z, masks)
        s = jnp.mean(jnp.tanh(self.c @ rows))
        # b2 s is minus the log-variance (both released codes), where Louizos and Welling write a
        # sigmoid for the deviation.
        return log_densities(z0, self.b1 * s, -0.5 * self.b2 * s) + log_dets


class MNFLayer(LocalLayerPosterior):
    """One layer; mean_layer holds mu_w and the mean of the bias."""

    mean_layer: Layer
    weight_log_std: Float[Array, "..."]
    bias_log_std: Float[Array, " out"]
    z0_mean: Float[Array, " z"]
    z0_log_std: Float[Array, " z"]
    flow: Flow
    auxiliary: Auxiliary
    prior_std: float = eqx.field(static=True)

    def noise(self, supply: Supply) -> NoiseSample:
        size = self.z0_mean.size
        return NoiseSample(
            epsilon_z=supply.take(size),
            epsilon_weight=supply.like(self.mean_layer.weight),
            epsilon_bias=supply.like(self.mean_layer.bias),
            masks=self.flow.masks(supply, size),
            auxiliary_masks=self.auxiliary.flow.masks(supply, size),
        )

    def draw(self, noise: NoiseSample) -> tuple[Layer, Scalar]:
        """The deterministic function h of the paper's sampling procedure, and what it costs."""
        z0 = self.z0_mean + jnp.exp(self.z0_log_std) * noise.epsilon_z
        z, log_dets = self.flow.by_entry(z0, noise.masks)
        layer = self._scaled(z)
        mean = layer.weight
        weight = mean + spread(self.weight_log_std, noise.epsilon_weight)
        bias = layer.bias + jnp.exp(self.bias_log_std) * noise.epsilon_bias

        kl = kl_to_prior(mean, self.weight_log_std, self.prior_std)
        kl = kl + kl_to_prior(layer.bias, self.bias_log_std, self.prior_std)
        # The standardised z_0 is epsilon_z itself: subtracting means would only lose digits.
        log_q = standard_log_densities(noise.epsilon_z) - self.z0_log_std - log_dets
        log_r = self.auxiliary.log_densities(z, _rows(weight), noise.auxiliary_masks)
        # One sum for all terms that an entry of z has: each further one is operations of XLA.
        return replace(layer, weight=weight, bias=bias), kl + jnp.sum(log_q - log_r)

    def mean(self) -> Layer:
        z, _ = self.flow(self.z0_mean, self.flow.mean_masks(self.z0_mean))
        return self._scaled(z)

    def sample_outputs(self, key: Key) -> NoisyOutputs:
        z_key, output_key = threefry.split(key)
        size = self.z0_mean.size
        epsilon_z, masks = normals(
            lambda supply: (supply.take(size), self.flow.masks(supply, size)),
            z_key,
            self.z0_mean.dtype,
        )
        z, _ = self.flow(self.z0_mean + jnp.exp(self.z0_log_std) * epsilon_z, masks)
        variance = replace(
            self.mean_layer,
            weight=jnp.exp(2 * self.weight_log_std),
            bias=jnp.exp(2 * self.bias_log_std),
        )
        return NoisyOutputs(_Factors(self.mean_layer, z), variance, output_key)

    def _scaled(self, z: Float[Array, " z"]) -> Layer:
        """The mean layer with z multiplied into its weights."""
        layer = self.mean_layer
        factors = z[:, None] if isinstance(layer, Linear) else z[None, None, None, :]
        return replace(layer, weight=factors * layer.weight)


class _Factors(eqx.Module):
    """The same function as the scaled layer, without a scaled copy of the weights per example."""

    layer: Layer
    z: Float[Array, " z"]

    def __call__(self, x: Array) -> Array:
        if isinstance(self.layer, Linear):
            return self.layer(x * self.z)
        unbiased = replace(self.layer, bias=jnp.zeros_like(self.layer.bias))
        return unbiased(x) * self.z[None, None, :] + self.layer.bias[None, None, :]


def _num_factors(layer: Layer) -> int:
    """z multiplies the inputs of a linear layer, and the filters of a convolution."""
    return layer.bias.size if isinstance(layer, Conv2d) else layer.weight.shape[0]


def _rows(weight: Float[Array, "..."]) -> Float[Array, "z other"]:
    """The weights as a matrix whose row i is what z_i multiplies."""
    return weight if weight.ndim == 2 else weight.reshape(-1, weight.shape[-1]).T

"""A conjugate Gaussian last layer on learnt features (Azizzadenesheli et al., "Bayesian DQN")."""

from dataclasses import dataclass
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp

from randq import threefry
from randq.config import number
from randq.networks import Linear, Network
from randq.posteriors.base import (
    Draw,
    Family,
    Frozen,
    Init,
    Members,
    OneNetwork,
    Posterior,
    zero_cost,
)
from randq.types import Array, Batch, Float, Int, Key


@dataclass(frozen=True)
class BayesLinear(Family):
    """Bayesian linear regression for each output, on features that are learnt by gradient."""

    prior_std: float = 1.0
    """Standard deviation of the Gaussian prior over the last layer's weights."""
    noise_std: float = 1.0
    """Standard deviation of the targets around their mean."""

    def __post_init__(self) -> None:
        number("prior_std", self.prior_std)
        number("noise_std", self.noise_std)

    def build(self, init: Init, key: Key) -> "BayesLinearPosterior":
        network = init(key)
        features, outputs = network.head.weight.shape
        dtype = network.head.weight.dtype
        precision_root = jnp.eye(features + 1, dtype=dtype) / self.prior_std
        return BayesLinearPosterior(
            torso=eqx.tree_at(lambda n: n.head, network, None),
            last=Frozen(
                LastLayer(
                    mean=jnp.zeros((outputs, features + 1), dtype),
                    precision_root=jnp.tile(precision_root[None], (outputs, 1, 1)),
                ),
                constant=False,
            ),
            prior_std=self.prior_std,
            noise_std=self.noise_std,
        )


class LastLayer(eqx.Module):
    """N(mean, (L L^T)^-1) over the weights of each output, the bias being the last of them."""

    mean: Float[Array, "out weights"]
    precision_root: Float[Array, "out weights weights"]  # lower triangular L

    @classmethod
    def regression(
        cls,
        features: Float[Array, "batch weights"],
        outputs: Int[Array, " batch"],
        targets: Float[Array, " batch"],
        num_outputs: int,
        prior_std: float,
        noise_std: float,
    ) -> Self:
        """The textbook posterior (Bishop, eq. 3.53-3.54), each output given its own examples."""

        def one(output: Int[Array, ""]) -> tuple[Array, Array]:
            own = jnp.where(outputs == output, 1, 0).astype(features.dtype)
            weighted = features * own[:, None] / noise_std**2
            prior_precision = jnp.eye(features.shape[1], dtype=features.dtype) / prior_std**2
            root = jnp.linalg.cholesky(weighted.T @ features + prior_precision)
            return jax.scipy.linalg.cho_solve((root, True), weighted.T @ targets), root

        return cls(*jax.vmap(one)(jnp.arange(num_outputs, dtype=outputs.dtype)))

    def sample(self, key: Key) -> Float[Array, "out weights"]:
        epsilon = threefry.normal(key, self.mean.shape, self.mean.dtype)
        # With precision L L^T, the covariance of L^-T epsilon is its inverse.
        deviation = jax.lax.linalg.triangular_solve(
            self.precision_root, epsilon[..., None], left_side=True, lower=True, transpose_a=True
        )
        return self.mean + deviation[..., 0]


class BayesLinearPosterior(Posterior):
    """The features learn by gradient under the mean of the last layer; `condition` updates that."""

    torso: Network  # without its head
    last: Frozen[LastLayer]
    prior_std: float = eqx.field(static=True)
    noise_std: float = eqx.field(static=True)

    @property
    def num_members(self) -> int:
        return 1

    def sample(self, key: Key) -> Draw:
        return Draw(self._network(self.last.value.sample(key)), zero_cost(self.torso))

    def mean(self) -> Network:
        return self._network(self.last.value.mean)

    def members(self, key: Key | None) -> Members:
        return OneNetwork(network=self.mean(), cost=zero_cost(self.torso))

    def settled(self) -> Self:
        return self

    def masks(self, key: Key, batch: int) -> Float[Array, "members batch"]:
        return jnp.ones((1, batch), zero_cost(self.torso).dtype)

    def evaluator(self) -> Network:
        return self.mean()

    def condition(
        self, xs: Batch, outputs: Int[Array, " batch"], targets: Float[Array, " batch"]
    ) -> Self:
        features = jax.vmap(self.torso.features)(xs)
        ones = jnp.ones_like(features[:, :1])
        last = LastLayer.regression(
            jnp.concatenate([features, ones], axis=1),
            outputs,
            targets,
            num_outputs=self.last.tree.mean.shape[0],
            prior_std=self.prior_std,
            noise_std=self.noise_std,
        )
        return eqx.tree_at(lambda posterior: posterior.last, self, Frozen(last, constant=False))

    def _network(self, weights: Float[Array, "out weights"]) -> Network:
        head = Linear(weights[:, :-1].T, weights[:, -1])
        return eqx.tree_at(lambda n: n.head, self.torso, head, is_leaf=lambda node: node is None)

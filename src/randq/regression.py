"""A posterior at work on twenty points: y = x^3 + noise, the sanity check of the authors' code.

Every family fits the same data with a network of 100 hidden units, through the same few lines; what
differs is how sure each is where there is no data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from randq.config import number, one_of, whole
from randq.networks import MLP
from randq.optimise import begin, descend
from randq.posteriors import (
    MNF,
    BayesLinear,
    Bootstrap,
    Family,
    MeanField,
    Noisy,
    Point,
    Posterior,
    trainable,
)
from randq.types import Array, Float, Int, Key, Scalar

NOISE_STD = 3.0
X_UNIT, Y_UNIT = 4 / 3**0.5, (4**6 / 7) ** 0.5
"""Standard deviations of x and of x^3 on [-4, 4]: the networks see both in these units."""

Data = Literal["cubic", "gap"]
"""Points all over [-4, 4], or none between -1.5 and 1.5."""

FAMILIES: Mapping[str, Family] = {
    "point": Point(),
    "noisy": Noisy(),
    "mean_field": MeanField(),
    "mnf": MNF(flow_hidden=50),
    "bootstrap": Bootstrap(shared="nothing"),
    "bootstrap_prior": Bootstrap(shared="nothing", prior_scale=3.0),
    "bayes_linear": BayesLinear(noise_std=NOISE_STD / Y_UNIT),
}
"""What is shown side by side."""


@dataclass(frozen=True)
class Regression:
    """Settings of the experiment."""

    data: Data = "cubic"
    """Which points: all over [-4, 4] (cubic), or none in the middle (gap)."""
    points: int = 20
    """Number of data points."""
    hidden: int = 100
    """Hidden units of the network."""
    steps: int = 2000
    """Gradient steps, each on all points."""
    learning_rate: float = 0.02
    """Step size of Adam, decayed to zero along a cosine."""
    draws: int = 200
    """Draws of the posterior behind the mean and the spread that are shown."""

    def __post_init__(self) -> None:
        one_of("data", self.data, get_args(Data))
        for setting in ("points", "hidden", "steps"):
            whole(setting, getattr(self, setting), at_least=1)
        whole("draws", self.draws, at_least=2)
        number("learning_rate", self.learning_rate)

    def sample(self, key: Key) -> tuple[Float[Array, "points 1"], Float[Array, " points"]]:
        """The data of one seed."""
        x_key, noise_key = jax.random.split(key)
        gap = 1.5 if self.data == "gap" else 0.0
        u = jax.random.uniform(x_key, (self.points,), minval=-1.0, maxval=1.0)
        x = jnp.sign(u) * (gap + (4.0 - gap) * jnp.abs(u))
        y = x**3 + NOISE_STD * jax.random.normal(noise_key, x.shape)
        return x[:, None], y

    def fit(
        self,
        family: Family,
        x: Float[Array, "points 1"],
        y: Float[Array, " points"],
        key: Key,
    ) -> Posterior:
        """Train a posterior on the loss of the paper's eq. 19, on all points at once."""
        init_key, mask_key, steps_key = jax.random.split(key, 3)
        posterior = family.build(lambda k: MLP.create(1, [self.hidden], 1, key=k), init_key)
        x, y = x / X_UNIT, y / Y_UNIT
        masks = posterior.masks(mask_key, len(y))
        only_output = jnp.zeros(y.shape, jnp.int32)
        # The variance of the noise is known here, so lambda = 2 tau^2 / |D| needs no tuning.
        scale = 2 * (NOISE_STD / Y_UNIT) ** 2 / len(y)
        optimiser = optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.steps))
        params, frozen = trainable(posterior)

        def loss(params: Posterior, frozen: Posterior, key: Key) -> Scalar:
            members = eqx.combine(params, frozen).members(key)
            error = masks * (y[None] - members(x)[..., 0]) ** 2
            return jnp.sum(jnp.mean(error, axis=1)) + scale * members.cost

        def step(carry, key):  # type: ignore[no-untyped-def]
            params, frozen, state = carry
            value, gradient = jax.value_and_grad(loss)(params, frozen, key)
            params, state = descend(optimiser, gradient, value, params, state)
            conditioned = eqx.combine(params, frozen).condition(x, only_output, y)
            return (*trainable(conditioned), state), None

        keys = jax.random.split(steps_key, self.steps)
        start = (params, frozen, begin(optimiser, params))
        (params, frozen, _), _ = jax.lax.scan(step, start, keys)
        return eqx.combine(params, frozen)

    def predict(
        self, posterior: Posterior, grid: Float[Array, " grid"], key: Key
    ) -> tuple[Float[Array, " grid"], Float[Array, " grid"]]:
        """Mean and standard deviation of the posterior's draws along the grid."""

        def values(draw_key: Key) -> Float[Array, " grid"]:
            return Y_UNIT * jax.vmap(posterior.sample(draw_key))(grid[:, None] / X_UNIT)[:, 0]

        draws = jax.vmap(values)(jax.random.split(key, self.draws))
        return jnp.mean(draws, axis=0), jnp.std(draws, axis=0)


@dataclass(frozen=True)
class Fit:
    """One family on the data of every seed: arrays have a leading axis of seeds."""

    x: Float[Array, "seeds points"]
    y: Float[Array, "seeds points"]
    grid: Float[Array, " grid"]
    mean: Float[Array, "seeds grid"]
    std: Float[Array, "seeds grid"]

    def growth(self) -> Float[Array, " seeds"]:
        """Spread at |x| = 6 over the spread among the data; NaN where there is no spread."""
        inside, outside = self.spread()
        return outside / inside

    def spread(self) -> tuple[Float[Array, " seeds"], Float[Array, " seeds"]]:
        """The mean spread at |x| < 3, and at |x| = 6."""
        inside = jnp.mean(self.std[:, jnp.abs(self.grid) < 3], axis=1)
        return inside, (self.std[:, 0] + self.std[:, -1]) / 2


def run(family: Family, regression: Regression, seeds: Int[Array, " seeds"]) -> Fit:
    """Fit one family for all seeds at once, and predict on [-6, 6]."""
    grid = jnp.linspace(-6.0, 6.0, 121)

    @jax.jit
    @jax.vmap
    def one(seed: Array):  # type: ignore[no-untyped-def]
        data_key, fit_key, draw_key = jax.random.split(jax.random.key(seed), 3)
        x, y = regression.sample(data_key)
        posterior = regression.fit(family, x, y, fit_key)
        return x[:, 0], y, *regression.predict(posterior, grid, draw_key)

    x, y, mean, std = one(seeds)
    return Fit(x, y, grid, mean, std)

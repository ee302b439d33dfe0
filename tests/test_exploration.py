"""Schedules and noise by themselves; what agents do with them is in tests/agents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.actor_critic import Actor, Bounds
from randq.exploration import Epsilon, OrnsteinUhlenbeck, ParameterNoise, Thompson


def chance(epsilon, steps=0, episodes=0):
    return float(epsilon(jnp.int32(steps), jnp.int32(episodes)))


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, 0.9), (1, 0.82), (5, 0.5), (10, 0.1), (11, 0.1), (10**9, 0.1)],
)
def test_falls_in_a_straight_line_and_stays(count, expected):
    # 98 and 99 are long past the decay, so counting in the wrong unit would give 0.1.
    by_episodes = Epsilon(start=0.9, end=0.1, decay=10, unit="episodes")
    assert chance(by_episodes, steps=99, episodes=count) == pytest.approx(expected)
    by_steps = Epsilon(start=0.9, end=0.1, decay=10, unit="steps")
    assert chance(by_steps, steps=count, episodes=98) == pytest.approx(expected)


def test_may_rise_and_may_be_constant():
    assert chance(Epsilon(start=0.0, end=1.0, decay=4), episodes=1) == pytest.approx(0.25)
    assert chance(Epsilon(start=0.3, end=0.3), episodes=77) == pytest.approx(0.3)


def test_the_default_is_that_of_the_paper():
    assert chance(Epsilon(), episodes=0) == 1.0
    assert chance(Epsilon(), episodes=500) == pytest.approx(0.55)
    assert chance(Epsilon(), episodes=1000) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"start": 1.5}, "epsilon.start: got 1.5, takes a number from 0 to 1"),
        ({"end": -0.1}, "epsilon.end: got -0.1, takes a number from 0 to 1"),
        ({"start": float("nan")}, "epsilon.start: got nan, takes a number from 0 to 1"),
        ({"decay": 0}, "epsilon.decay: got 0, takes an integer >= 1"),
    ],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Epsilon(**settings)


# --- Ornstein-Uhlenbeck ------------------------------------------------------------------------


def paths(noise, steps, count):
    """Many processes side by side, from 0: an axis of steps first."""

    def step(x, key):
        x = noise(x, key)
        return x, x

    keys = jax.random.split(jax.random.key(0), steps)
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, jnp.zeros(count), keys))()[1], np.float64)


@pytest.mark.parametrize(
    "noise",
    [OrnsteinUhlenbeck(dt=1.0), OrnsteinUhlenbeck(sigma=0.7, theta=0.4, dt=0.25)],
    ids=repr,
)
def test_ornstein_uhlenbeck_has_its_variance_and_autocorrelation(noise):
    sigma, theta, dt, count = noise.sigma, noise.theta, noise.dt, 40_000
    found = paths(noise, 60, count)
    stationary = sigma**2 / (2 * theta)
    error = 4 * np.sqrt(2 / count)  # four standard errors of a variance, relative to it
    for t in (1, 2, 5, 20, 60):
        variance = stationary * (1 - np.exp(-2 * theta * dt * t))
        assert found[t - 1].var() == pytest.approx(variance, rel=error)
        assert abs(found[t - 1].mean()) < 4 * np.sqrt(variance / count)
    # Cov(x_s, x_t) = sigma^2 / 2 theta (e^(-theta |t - s|) - e^(-theta (t + s))).
    for s, t in ((1, 2), (20, 21), (30, 40), (10, 60)):
        lag, both = theta * dt * (t - s), theta * dt * (t + s)
        covariance = stationary * (np.exp(-lag) - np.exp(-both))
        assert np.mean(found[s - 1] * found[t - 1]) == pytest.approx(
            covariance, abs=4 * stationary * np.sqrt(2 / count)
        )


def test_ornstein_uhlenbeck_is_the_same_process_in_steps_of_any_length():
    short, long = OrnsteinUhlenbeck(dt=0.25), OrnsteinUhlenbeck(dt=1.0)
    a, b = paths(short, 40, 40_000)[3::4], paths(long, 10, 40_000)
    np.testing.assert_allclose(a.var(axis=1), b.var(axis=1), rtol=0.05)


def test_the_default_is_that_of_plappert_et_al():
    noise = OrnsteinUhlenbeck()
    assert (noise.sigma, noise.theta, noise.dt) == (0.2, 0.15, 0.01)
    # Their rule x + theta (0 - x) dt + sigma sqrt(dt) N, which is ours up to order dt^2.
    x, key = jnp.array([0.3, -0.1]), jax.random.key(0)
    theirs = x - 0.15 * x * 0.01 + 0.2 * 0.1 * jax.random.normal(key, (2,))
    np.testing.assert_allclose(noise(x, key), theirs, rtol=2e-3)


# --- parameter noise ---------------------------------------------------------------------------


def test_parameter_noise_moves_weights_and_biases_but_not_layer_norms():
    actor = Actor.create(30, (60, 50), Bounds((-1.0,), (1.0,)), key=jax.random.key(0))
    noise = ParameterNoise()
    moved = noise.perturbed(actor, jnp.float32(0.3), jax.random.key(1))
    difference = jax.tree.map(lambda a, b: np.asarray(a - b), moved, actor)
    for layer in (*(block.linear for block in difference.blocks), difference.head):
        for part in (layer.weight, layer.bias):
            assert (part != 0).all()
    everything = np.concatenate([block.linear.weight.ravel() for block in difference.blocks])
    assert everything.std() == pytest.approx(0.3, rel=0.05)
    assert np.unique(everything).size > 0.99 * everything.size
    for block in difference.blocks:
        assert (block.norm.scale == 0).all()
        assert (block.norm.shift == 0).all()


def test_parameter_noise_grows_while_actions_are_too_close_and_shrinks_otherwise():
    noise = ParameterNoise(distance=0.2, factor=1.25)
    for distance, expected in ((0.1, 1.25), (0.3, 0.8)):
        found = noise.adapted(jnp.float32(1.0), jnp.float32(distance))
        assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: OrnsteinUhlenbeck(sigma=-0.1), "noise.sigma: got -0.1, takes a finite number > 0"),
        (lambda: OrnsteinUhlenbeck(dt=0.0), "noise.dt: got 0.0, takes a finite number > 0"),
        (lambda: OrnsteinUhlenbeck(theta=float("inf")), "noise.theta: got inf"),
        (lambda: ParameterNoise(factor=1.0), "parameter_noise.factor: got 1.0, takes .* > 1"),
        (lambda: ParameterNoise(distance=0.0), "parameter_noise.distance: got 0.0"),
        (lambda: Thompson(learning_rate=0.0), "thompson.learning_rate: got 0.0"),
    ],
)
def test_wrong_noise_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()

"""Divergences and densities, against SciPy and numerical integration."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from randq.posteriors.gaussian import kl_to_prior, log_densities


@pytest.mark.parametrize(
    ("mean", "std", "prior_std"),
    [(0.0, 1.0, 1.0), (0.7, 0.3, 1.0), (-2.0, 1.5, 0.5), (0.1, 0.05, 3.0)],
)
def test_kl_is_the_integral(mean, std, prior_std, x64):
    q, p = scipy.stats.norm(mean, std), scipy.stats.norm(0, prior_std)
    low, high = mean - 12 * std, mean + 12 * std
    integral, _ = scipy.integrate.quad(
        lambda w: q.pdf(w) * (q.logpdf(w) - p.logpdf(w)), low, high, points=[mean]
    )
    got = kl_to_prior(jnp.asarray([mean]), jnp.log(jnp.asarray([std])), prior_std)
    np.testing.assert_allclose(got, integral, atol=1e-9)


def test_kl_of_the_prior_is_zero_and_entries_add_up():
    assert kl_to_prior(jnp.zeros((2, 3)), jnp.zeros((2, 3)), 1.0) == 0
    mean, log_std = jnp.asarray([[0.5, -1.0]]), jnp.asarray([[0.1, -0.7]])
    parts = [kl_to_prior(mean[:, i], log_std[:, i], 0.9) for i in range(2)]
    np.testing.assert_allclose(kl_to_prior(mean, log_std, 0.9), sum(parts), rtol=1e-6)


@given(
    mean=st.floats(-3, 3, width=32),
    log_std=st.floats(-3, 2, width=32),
    prior_std=st.floats(0.125, 8, width=32),
)
def test_kl_is_never_negative(mean, log_std, prior_std):
    got = kl_to_prior(jnp.asarray([mean]), jnp.asarray([log_std]), prior_std)
    assert got >= -1e-5


def test_log_densities(x64):
    rng = np.random.default_rng(0)
    x, mean, log_std = rng.normal(size=(3, 7))
    expected = scipy.stats.norm(mean, np.exp(log_std)).logpdf(x)
    got = log_densities(jnp.asarray(x), jnp.asarray(mean), jnp.asarray(log_std))
    np.testing.assert_allclose(got, expected, rtol=1e-12)

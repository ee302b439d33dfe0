"""The schedule of epsilon; what `act` does with it is in tests/agents/test_draws.py."""

import jax.numpy as jnp
import pytest

from randq.exploration import Epsilon


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

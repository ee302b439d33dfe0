"""The posteriors at work: sure among the data, unsure away from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.cli import main
from randq.regression import FAMILIES, NOISE_STD, Regression, run

SEEDS = jnp.arange(20)


def test_data_are_a_noisy_cubic_with_or_without_a_gap():
    x, y = jax.vmap(Regression(points=1000).sample)(jax.random.split(jax.random.key(0), 4))
    assert np.abs(x).max() < 4
    residuals = np.asarray(y - x[..., 0] ** 3)
    assert residuals.std() == pytest.approx(NOISE_STD, rel=0.05)
    assert np.histogram(x, bins=8, range=(-4, 4))[0].min() > 400
    x, _ = Regression(data="gap", points=1000).sample(jax.random.key(0))
    assert 1.5 <= np.abs(x).min() < np.abs(x).max() < 4


@pytest.mark.parametrize("name", ["mnf", "mean_field", "bootstrap_prior"])
@pytest.mark.parametrize("data", ["cubic", "gap"])
def test_uncertainty_grows_away_from_the_data(name, data):
    fit = run(FAMILIES[name], Regression(data=data), SEEDS)
    # The data must be fitted where they lie: within the noise, not merely with wide bands.
    predicted = np.stack([np.interp(fit.x[s], fit.grid, fit.mean[s]) for s in range(len(SEEDS))])
    assert np.sqrt(np.mean((predicted - fit.y) ** 2)) < 2 * NOISE_STD
    growth = np.asarray(fit.growth())
    assert np.median(growth) > 2
    assert np.mean(growth > 1.5) >= 0.9


def test_a_point_estimate_has_no_spread():
    fit = run(FAMILIES["point"], Regression(steps=10, draws=2), SEEDS[:2])
    assert float(jnp.max(fit.std)) == 0.0


def test_seeds_do_not_depend_on_how_they_are_batched():
    settings = Regression(steps=50, draws=8)
    alone = run(FAMILIES["mean_field"], settings, jnp.array([7]))
    among = run(FAMILIES["mean_field"], settings, jnp.arange(5, 10))
    np.testing.assert_array_equal(alone.x[0], among.x[2])
    np.testing.assert_allclose(alone.mean[0], among.mean[2], rtol=1e-3, atol=1e-2)


def test_command_writes_the_picture_and_says_where(tmp_path, capsys):
    out = tmp_path / "folder" / "picture.png"
    options = ["--families", "point", "noisy", "--steps", "5", "--seeds", "2"]
    main(["regression", *options, "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out.replace("\n", "")
    assert "noisy" in printed
    assert "picture.png" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--points", "0"], ["points", "got 0", "takes an integer >= 1"]),
        (["--families", "mnff"], ["families", "'mnff'", "did you mean"]),
        (["--data", "gapp"], ["data", "gapp", "gap"]),
        (["--learning-rate", "-1"], ["learning_rate", "-1", "a finite number > 0"]),
        (["--out", "picture.txt"], ["out", "picture.txt", ".png"]),
        (["--out", "/proc/picture.png"], ["out", "/proc", "written"]),
        (["--seeds", "0"], ["seeds", "got 0", "takes an integer >= 1"]),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(options, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["regression", *options])
    assert stop.value.code != 0
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    for word in words:
        assert word in error


def test_an_unknown_command_gets_a_guess(capsys):
    with pytest.raises(SystemExit):
        main(["regresion"])
    error = capsys.readouterr().err
    assert "command: got 'regresion'" in error
    assert "did you mean 'regression'" in error

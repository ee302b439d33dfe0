"""Every refusal names the setting, what it got and what it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq import config


def refused(check, *arguments, match):
    with pytest.raises(ValueError, match=match):
        check(*arguments)


def test_memory_is_what_the_machine_and_the_container_have_left(tmp_path):
    assert config.available_memory(tmp_path) == float("inf")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 800 kB\n")
    assert config.available_memory(tmp_path) == 800 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("100000\n")
    (group / "memory.max").write_text("max\n")
    assert config.available_memory(tmp_path) == 800 * 1024
    (group / "memory.max").write_text("300000\n")
    assert config.available_memory(tmp_path) == 200_000
    (group / "memory.stat").write_text("anon 60000\ninactive_file 40000\n")
    assert config.available_memory(tmp_path) == 240_000


def test_replays_of_runs_at_once_must_fit_together(monkeypatch):
    monkeypatch.setattr(config, "available_memory", lambda: 10e9)
    config.replay_fits(4 * 10**9, 5, at_once=2)
    refused(config.replay_fits, 5 * 10**9, 5, 2, match=r"^replay_capacity: got '2 runs at once .*")
    refused(config.replay_fits, 9 * 10**9, 5, match=r"^replay_capacity: got '5 transitions of 9.0")


def test_whole_numbers():
    config.whole("heads", 1, 1)
    for bad in (0, -3, 1.0, "1", None, True, np.nan):
        refused(config.whole, "heads", bad, 1, match=r"^heads: got .*, takes an integer >= 1$")


def test_numbers():
    for good in (1e-9, 3, np.float64(0.5)):
        config.number("noise_std", good)
    config.number("offset", -0.5, -1.0)
    for bad in (0, -1.0, float("inf"), float("nan"), "1", None, True):
        refused(
            config.number, "noise_std", bad, match="^noise_std: got .*, takes a finite number > 0$"
        )


def test_intervals_are_closed():
    for good in (0, 1, 0.5):
        config.within("epsilon", good, 0.0, 1.0)
    for bad in (-1e-9, 1.1, float("nan"), "0.5", False):
        refused(config.within, "epsilon", bad, 0.0, 1.0, match="^epsilon: .* a number from 0 to 1$")


def test_words():
    config.one_of("shared", "torso", ["nothing", "torso"])
    refused(config.one_of, "shared", "trso", ["nothing", "torso"], match="did you mean 'torso'")
    with pytest.raises(ValueError, match=r"got 3, takes one of nothing, torso$"):
        config.one_of("shared", 3, ["nothing", "torso"])


def test_dtypes():
    assert config.floating("dtype", "float32") == jnp.float32
    assert config.floating("dtype", jnp.bfloat16) == jnp.bfloat16
    for bad in (jnp.int32, bool, "complex64", "flaot32", object()):
        refused(config.floating, "dtype", bad, match="^dtype: got .*, takes a floating-point dtype")


def test_float64_is_refused_unless_it_would_be_honoured():
    refused(config.floating, "dtype", "float64", match="jax_enable_x64")
    with jax.enable_x64(True):
        assert config.floating("dtype", np.float64) == jnp.float64

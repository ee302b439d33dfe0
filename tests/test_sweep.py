"""Sweeps: a job is its own key, results survive every kind of end, failures stay alone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import jax
import pytest

from randq.cache import cache_directory, enable_compilation_cache
from randq.config import override
from randq.presets import preset
from randq.sweep import CompiledJob, Finished, Store, local, read_job, sweep
from randq.sweep.compiled import untrained_optimal

SMALL = {"hidden": [2], "replay_capacity": 40}


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Workers begin with nothing compiled, and leave nothing in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def job(length=3, **changes):
    defaults = {"env_settings": {"length": length}, "overrides": SMALL, "episodes": 3}
    return CompiledJob("ddqn", "nchain", (0, 1), **{**defaults, **changes})


def pretend(jobs, folder):
    """An engine that computes nothing."""
    for item in jobs:
        yield Finished(item, {"length": item.env_settings["length"]})


# Jobs


def test_a_job_survives_json_and_is_its_own_key():
    again = read_job(json.loads(json.dumps(job().as_json())))
    assert again == job()
    assert again.key == job().key
    others = [job(length=4), job(episodes=4), job(overrides={}), job(kind="untrained")]
    assert len({item.key for item in [job(), *others]}) == 5


def test_the_key_holds_the_settings_behind_the_names(monkeypatch):
    before = job().key
    changed = override(preset("ddqn"), {"gamma": 0.5})
    monkeypatch.setattr("randq.sweep.compiled.preset", lambda agent, env: changed)
    assert job().key != before


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CompiledJob("dddqn", "nchain", (0,), episodes=1), "did you mean 'ddqn'"),
        (lambda: CompiledJob("ddqn", "chain", (0,), episodes=1), "did you mean 'nchain'"),
        (lambda: job(env_settings={"lenght": 3}), "did you mean 'length'"),
        (lambda: job(env_settings={"length": 1}), "an integer >= 2"),
        (lambda: job(overrides={"gama": 1}), "did you mean 'gamma'"),
        (lambda: job(overrides={"gamma": 2.0}), "gamma: got 2.0"),
        (lambda: job(overrides={"gamma.x": 2.0}), "setting of float"),
        (lambda: job(episodes=0), "episodes: got 0"),
        (lambda: CompiledJob("ddqn", "nchain", (), episodes=1), "seeds: got 0"),
        (lambda: CompiledJob("ddqn", "nchain", (2**31,), episodes=1), "below 2**31"),
    ],
)
def test_a_wrong_job_is_refused_when_it_is_made(make, says):
    with pytest.raises(ValueError, match="got") as refusal:
        make()
    assert says in str(refusal.value)


def test_override_reaches_inside():
    agent = override(preset("mnf-dqn"), {"posterior.flow_hidden": 3, "hidden": [4, 5]})
    assert (agent.posterior.flow_hidden, agent.hidden) == (3, (4, 5))
    assert override(agent, {}) == agent


def test_perform_trains_what_the_job_says(tmp_path):
    result = job(length=4, episodes=2).perform(tmp_path)
    assert [seed["seed"] for seed in result["seeds"]] == [0, 1]
    assert {seed["episodes"] for seed in result["seeds"]} == {2}
    assert (result["agent"], result["env"]) == ("ddqn", "nchain")


def test_untrained_networks_do_not_depend_on_the_batch_and_some_are_lucky(tmp_path):
    agent, env = job(overrides={}).resolved
    by_four, by_seven = (untrained_optimal(agent, env, range(30), b) for b in (4, 7))
    assert by_four.tolist() == by_seven.tolist()
    assert 0 < by_four.sum() < 30
    counted = job(overrides={}, kind="untrained", batch=4).perform(tmp_path)
    assert counted == {"optimal": int(by_four[:2].sum()), "networks": 2}


# The store


def test_what_is_done_is_not_done_again(tmp_path):
    first = sweep([job(3), job(4)], tmp_path, pretend)
    asked = []

    def engine(jobs, folder):
        asked.extend(jobs)
        return pretend(jobs, folder)

    second = sweep([job(3), job(5), job(4)], tmp_path, engine)
    assert asked == [job(5)]
    assert [item.env_settings["length"] for item, _ in second.done] == [3, 5, 4]
    assert second.done[0] == first.done[0]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_torn_last_line_is_a_job_not_done(tmp_path, cut):
    sweep([job(3), job(4)], tmp_path, pretend)
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with Store(path) as store:
        assert store.get(job(3)) == {"length": 3}
        assert store.get(job(4)) is None
    sweep([job(3), job(4)], tmp_path, pretend)
    assert path.read_bytes() == whole


def test_a_damaged_line_costs_one_job(tmp_path):
    sweep([job(3), job(4), job(5)], tmp_path, pretend)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:30], "[]", lines[2]]) + "\n")
    with Store(path) as store:
        found = [store.get(job(n)) for n in (3, 4, 5)]
    assert found == [{"length": 3}, None, {"length": 5}]


def test_two_sweeps_do_not_write_to_one_folder(tmp_path):
    with Store(tmp_path / "results.jsonl"), pytest.raises(ValueError, match="no other sweep"):
        Store(tmp_path / "results.jsonl")
    Store(tmp_path / "results.jsonl").__exit__(None, None, None)


def test_failures_are_reported_and_tried_again(tmp_path):
    def fails(jobs, folder):
        for item in jobs:
            bad = item.env_settings["length"] == 4
            yield Finished(item, None if bad else {"fine": True}, "no luck" if bad else "")

    seen = []
    results = sweep([job(3), job(4), job(5)], tmp_path, fails, watch=seen.append)
    assert [(f.job, f.error) for f in results.failed] == [(job(4), "no luck")]
    assert [item for item, _ in results.done] == [job(3), job(5)]
    assert (seen[-1].done, seen[-1].failed, seen[-1].jobs) == (2, 1, 3)
    assert [item for item, _ in sweep([job(4)], tmp_path, pretend).done] == [job(4)]


# The local engine, with real processes

DRIVER = """
import sys
from functools import partial
from pathlib import Path
from randq.sweep import local, read_job, sweep
jobs = [read_job(item) for item in {jobs}]
sweep(jobs, Path(sys.argv[1]), partial(local.run, workers=2))
"""


def workers_of(pid):
    """The worker processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [c for c in children if b"sweep.worker" in Path(f"/proc/{c}/cmdline").read_bytes()]


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="looks at processes through /proc"
)


def test_a_failing_job_leaves_the_others_alone_and_results_are_those_of_one_process(tmp_path):
    bad = job(overrides={"replay_capacity": 10**15})  # more than any memory
    results = sweep([bad, job(3)], tmp_path, partial(local.run, workers=2))
    (failure,) = results.failed
    assert failure.job == bad
    assert "Error: " in failure.error
    ((_, result),) = results.done
    assert result["seeds"] == job(3).perform(tmp_path)["seeds"]


@needs_proc
def test_a_worker_that_dies_costs_one_job(tmp_path):
    endless = job(4, episodes=10**7, overrides={**SMALL, "epsilon": None})
    finished = []
    running = local.run([endless, job(3)], tmp_path, workers=1)
    waiting = threading.Thread(target=lambda: finished.extend(running))
    waiting.start()
    wait_until(lambda: workers_of(os.getpid()))
    (pid,) = workers_of(os.getpid())
    os.kill(pid, signal.SIGKILL)
    waiting.join()
    first, second = finished
    assert (first.job, first.result) == (endless, None)
    assert "SIGKILL" in first.error
    assert second.job == job(3)
    assert second.result is not None


@needs_proc
def test_kill_9_loses_nothing_and_leaves_no_worker(tmp_path):
    jobs = [job(length) for length in range(3, 9)]
    path = tmp_path / "results.jsonl"
    text = DRIVER.format(jobs=[item.as_json() for item in jobs])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    driver = subprocess.Popen([sys.executable, "-c", text, str(tmp_path)], env=env)
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 1)
    workers = workers_of(driver.pid)
    assert len(workers) == 2
    if hasattr(os, "sched_getaffinity"):
        assert {len(os.sched_getaffinity(worker)) for worker in workers} == {1}
    driver.kill()
    driver.wait()
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 20)
    kept = path.read_bytes()
    done = kept.count(b"\n")
    assert 1 <= done < len(jobs)

    asked = []

    def engine(todo, folder):
        asked.extend(todo)
        return pretend(todo, folder)

    results = sweep(jobs, tmp_path, engine)
    assert len(asked) == len(jobs) - done
    assert path.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    assert len(results.done) == len(jobs)


@needs_proc
def test_closing_the_engine_stops_its_workers(tmp_path):
    jobs = [job(4, episodes=10**7), job(5, episodes=10**7), job(3)]
    running = local.run(jobs, tmp_path, workers=3)
    next(running)
    workers = workers_of(os.getpid())
    assert workers
    running.close()
    assert not workers_of(os.getpid())


# The compilation cache


@pytest.fixture
def jax_config():
    names = ["jax_compilation_cache_dir", "jax_enable_compilation_cache"]
    names += [f"jax_persistent_cache_min_{x}" for x in ("compile_time_secs", "entry_size_bytes")]
    before = {name: getattr(jax.config, name) for name in names}
    yield jax.config
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_cache_keeps_even_small_programs(tmp_path, monkeypatch, jax_config):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert enable_compilation_cache() == tmp_path / "a" / "b"
    assert jax_config.jax_compilation_cache_dir == str(tmp_path / "a" / "b")
    assert jax_config.jax_persistent_cache_min_compile_time_secs == 0
    assert jax_config.jax_persistent_cache_min_entry_size_bytes == -1


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_directory() == Path("/x/randq")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert cache_directory() == Path("/h/.cache/randq")


def test_a_cache_that_cannot_be_written_is_off(tmp_path, monkeypatch, jax_config):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert enable_compilation_cache() is None
    assert not jax_config.jax_enable_compilation_cache

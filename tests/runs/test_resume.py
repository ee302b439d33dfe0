"""A run that was killed, interrupted or starved of disk goes on as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from randq.presets import AGENTS, CONTINUOUS
from randq.runs.compiled import run_compiled
from randq.runs.directory import AGENT, EPISODES, EVALUATIONS, METRICS, RESULT, RunDirectory
from randq.runs.gym import GymRun
from randq.runs.interrupts import InterruptedRunError
from randq.runs.plan import read_plan
from randq.settings import to_json

KILLER = Path(__file__).parent / "killer.py"

# A chain that nobody solves, and one of each loop; checkpoints as often as there can be.
COMPILED = ["--env", "nchain", "--env.length", "30", "--env.action-map", "random"]
COMPILED += ["--seeds", "2", "--episodes", "1500", "--checkpoint-every", "0"]
HOST = ["--env", "CartPole-v1", "--steps", "2500", "--agent.learning-starts", "100"]
HOST += ["--agent.update-every", "4", "--log-every", "200", "--evaluation-episodes", "1"]
HOST += ["--checkpoint-every", "0.05"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


def killed(tmp_path, cache, kills, seed, arguments):
    """The same command, once undisturbed and once with many kills; how many hit a checkpoint."""
    results = {}
    for name, count in (("whole", 0), ("killed", kills)):
        command = [sys.executable, str(KILLER), str(tmp_path / name), str(count), str(seed)]
        found = subprocess.run(
            [*command, "train", *arguments], capture_output=True, text=True, env=cache, timeout=900
        )
        assert found.returncode == 0, found.stderr[-3000:]
        results[name] = [int(x) for x in found.stdout.split()]
    assert results["killed"][0] == kills
    same_runs(tmp_path / "whole", tmp_path / "killed")
    return results["killed"][1]


def same_runs(one, other):
    """To the bit, but for what depends on the clock."""
    folders = sorted(path.parent.relative_to(one) for path in one.rglob(RESULT))
    assert folders == sorted(path.parent.relative_to(other) for path in other.rglob(RESULT))
    assert folders
    for folder in folders:
        a, b = one / folder, other / folder
        for name in (EVALUATIONS, EPISODES, AGENT):
            assert (a / name).read_bytes() == (b / name).read_bytes(), name
        assert timeless(a / METRICS) == timeless(b / METRICS)
        results = [json.loads((x / RESULT).read_text()) for x in (a, b)]
        assert results[0]["fingerprint"] == results[1]["fingerprint"]
        assert results[1].get("inexact", []) == []


def timeless(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({record["step"] for record in records}) == len(records)
    return [{k: v for k, v in r.items() if not k.startswith("time/")} for r in records]


@pytest.mark.parametrize(
    ("arguments", "kills"),
    [
        (["mnf-dqn", *COMPILED], 7),
        (["mnf-dqn", *HOST], 7),
        (["boot-dqn-prior", *HOST[:1], "randq/DeepSea-v0", *HOST[2:]], 7),
    ],
)
def test_a_run_that_is_killed_again_and_again_is_the_same_run(tmp_path, cache, arguments, kills):
    killed(tmp_path, cache, kills, 0, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["compiled", "host"])
@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_survives_many_kills(tmp_path, cache, name, loop):
    """With 8 for each of 28, that is 224 of them."""
    arguments = COMPILED if loop == "compiled" else HOST
    if name in CONTINUOUS and loop == "compiled":
        arguments = ["--env", "pendulum", *COMPILED[6:8], "--steps", "20000", *COMPILED[10:]]
    elif name in CONTINUOUS:
        arguments = [HOST[0], "Pendulum-v1", *HOST[2:]]
    killed(tmp_path, cache, 8, 1, [name, *arguments])


# --- in this process: every agent, stopped at a moment of our choice ------------------------------


def stop_at(calls):
    """A signal that comes at this moment."""
    left = iter(range(calls, 0, -1))
    return lambda: None if next(left, 0) > 1 else signal.SIGTERM


def small(name, env, **settings):
    agent = {"hidden": [4], "learning_starts": 40, "replay_capacity": 300, "batch_size": 8}
    if name == "boot-ddpg":
        agent |= {"update_every": 50}
    if name == "bdqn":
        agent |= {"condition_batch": 32, "condition_every": 3}
    plan = read_plan({"name": name, "env": env, "agent": agent, "checkpoint_every": 1e6})
    return read_plan({**to_json(plan), **settings}).resolved


def go(plan, root, asked=lambda: None, evaluating=False):
    """Run a plan in folders below the root, which may have a part of it already. In the host loop
    what is asked counts steps of training, or else of evaluations."""
    warnings = []
    seeds = range(plan.seed, plan.seed + plan.seeds)
    directories = [RunDirectory(root / f"seed-{seed}") for seed in seeds]
    for seed, directory in zip(seeds, directories, strict=True):
        directory.lock()
        if not directory.exists:
            directory.create(seed, to_json(plan), "a test")
    try:
        if isinstance(plan.env, str):

            def asked_now():
                return asked() if run.counts.evaluating == evaluating else None

            run = GymRun(plan, plan.seed, directories[0], asked_now, warnings.append)
            run.run()
        else:
            run_compiled(plan, directories, asked, warnings.append)
    finally:
        for directory in directories:
            directory.close()
    return warnings


@pytest.fixture(scope="module")
def compilations(tmp_path_factory):
    """What is compiled for the first run serves the second."""
    before = jax.config.jax_compilation_cache_dir
    folder = str(tmp_path_factory.mktemp("compilations"))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("compilations")
@pytest.mark.parametrize("name", ["mnf-dqn", "noisy-dqn", "bdqn", "boot-ddpg"])
def test_compiled_runs_go_on_exactly(tmp_path, name):
    env, budget = {"kind": "nchain", "length": 6, "action_map": "random"}, {"episodes": 410}
    if name == "boot-ddpg":
        env, budget = {"kind": "pendulum"}, {"episodes": 210}
    plan = small(name, env, seeds=2, **budget)
    assert go(plan, tmp_path / "whole") == []
    with pytest.raises(InterruptedRunError, match="SIGTERM"):
        go(plan, tmp_path / "broken", stop_at(2))
    assert not (tmp_path / "broken" / "seed-0" / RESULT).exists()
    assert go(plan, tmp_path / "broken") == []
    same_runs(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.usefixtures("compilations")
@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("mnf-dqn", "CartPole-v1"),
        ("bdqn", "randq/NChain-v0"),
        ("boot-dqn", "FrozenLake-v1"),
        ("ddpg", "Pendulum-v1"),
        ("param-noise-ddpg", "randq/Pendulum-v0"),
    ],
)
def test_host_runs_go_on_exactly(tmp_path, name, env):
    plan = small(name, env, steps=700, log_every=50, evaluation_episodes=2)
    assert go(plan, tmp_path / "whole") == []
    for at in (150, 333):  # the replay has wrapped around by then
        with pytest.raises(InterruptedRunError):
            go(plan, tmp_path / "broken", stop_at(at))
    assert go(plan, tmp_path / "broken") == []
    same_runs(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.usefixtures("compilations")
def test_an_evaluation_that_is_interrupted_is_begun_again(tmp_path):
    """The one at step 100, and the last one, after which nothing is left to do."""
    plan = small("ddqn", "CartPole-v1", steps=250, log_every=50, evaluation_episodes=2)
    plan = read_plan({**to_json(plan), "evaluate_every": 100}).resolved
    assert go(plan, tmp_path / "whole") == []
    root = tmp_path / "broken"
    for first, step in ((3, 100), (1, 100), (3, 200)):
        with pytest.raises(InterruptedRunError):
            go(plan, root, stop_at(first), evaluating=True)
        newest = max((root / "seed-0" / "checkpoints").iterdir())
        assert int(newest.stem) == step
        records = (root / "seed-0" / EVALUATIONS).read_text().splitlines()
        assert len(records) == step // 100 - 1
        if step == 100 and first == 1:  # let this one through
            assert len(records) == 0
            with pytest.raises(InterruptedRunError):
                go(plan, root, stop_at(60))
            assert len((root / "seed-0" / EVALUATIONS).read_text().splitlines()) == 1
    assert go(plan, root) == []
    same_runs(tmp_path / "whole", root)


@pytest.fixture
def host_run(tmp_path, compilations):
    """Interrupted twice: it has two checkpoints."""
    plan = small("ddqn", "CartPole-v1", steps=600, log_every=50, evaluation_episodes=1)
    for at in (200, 150):
        with pytest.raises(InterruptedRunError):
            go(plan, tmp_path / "run", stop_at(at))
    return plan, tmp_path / "run"


def test_a_damaged_checkpoint_falls_back_to_the_one_before(host_run, tmp_path):
    plan, root = host_run
    older, newest = sorted((root / "seed-0" / "checkpoints").iterdir())
    assert (older.stem, newest.stem) == ("000000000200", "000000000350")
    content = bytearray(newest.read_bytes())
    content[-100] ^= 1
    newest.write_bytes(content)
    (warning,) = go(plan, root)
    assert "step 350 cannot be used" in warning
    go(plan, tmp_path / "whole")
    same_runs(tmp_path / "whole", root)


def test_a_loss_that_is_not_finite_is_told(tmp_path):
    wild = {"learning_rate": 1e30, "loss": "squared", "max_grad_norm": None}
    plan = small("ddqn", {"kind": "nchain", "length": 6}, seeds=2, episodes=100)
    plan = read_plan({**to_json(plan), "agent": {**to_json(plan)["agent"], **wild}})
    warnings = go(plan, tmp_path)
    assert len(warnings) == 2
    assert "seed 1, step" in warnings[1]
    assert "the loss is not finite" in warnings[1]


def test_a_checkpoint_under_a_wrong_name_is_refused(host_run):
    plan, root = host_run
    folder = root / "seed-0" / "checkpoints"
    (folder / "000000000200.randq").rename(folder / "000000000500.randq")
    (warning,) = go(plan, root)
    assert "step 500 cannot be used: it is of another step" in warning


def test_a_log_that_is_torn_or_too_long_is_repaired(host_run, tmp_path):
    plan, root = host_run
    for name in (METRICS, EVALUATIONS, EPISODES):
        with (root / "seed-0" / name).open("a") as log:
            log.write('{"step": 351, "roll')
    assert go(plan, root) == []
    go(plan, tmp_path / "whole")
    same_runs(tmp_path / "whole", root)


def test_a_log_that_is_too_short_makes_a_checkpoint_useless(host_run):
    plan, root = host_run
    (root / "seed-0" / METRICS).write_text("")
    with pytest.raises(ValueError, match="where the checkpoint saw"):
        go(plan, root)


def test_without_a_good_checkpoint_nothing_is_guessed(host_run):
    plan, root = host_run
    for path in (root / "seed-0" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="no checkpoint of it can be used"):
        go(plan, root)
    assert len(list((root / "seed-0" / "checkpoints").iterdir())) == 2


def test_a_lost_part_of_the_replay_is_noticed(host_run):
    plan, root = host_run
    for path in (root / "seed-0" / "replay").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="no checkpoint of it can be used"):
        go(plan, root)


def test_an_environment_that_cannot_be_brought_back_begins_an_episode_and_the_run_says_so(
    host_run, monkeypatch
):
    plan, root = host_run
    from gymnasium.envs.classic_control import CartPoleEnv

    step, dice = CartPoleEnv.step, np.random.default_rng(0)

    def shaken(self, action):
        """Randomness that is not its generator's."""
        self.state = np.asarray(self.state) + dice.normal(0, 1e-3, 4)
        return step(self, action)

    monkeypatch.setattr(CartPoleEnv, "step", shaken)
    (warning,) = go(plan, root)
    assert "step 350" in warning
    assert "episode begins anew" in warning
    result = json.loads((root / "seed-0" / RESULT).read_text())
    assert result["inexact"] == [350]
    assert result["steps"] == 600


def test_only_what_the_last_two_checkpoints_need_stays_on_disk(host_run):
    plan, root = host_run
    assert go(plan, root) == []
    folder = root / "seed-0"
    assert [path.stem for path in sorted((folder / "checkpoints").iterdir())] == [
        "000000000350",
        "000000000600",
    ]
    # 300 transitions are held: those from 50 on at step 350, and from 300 on at the end.
    names = [path.stem for path in sorted((folder / "replay").iterdir())]
    assert names == [
        "000000000000-000000000200",
        "000000000200-000000000350",
        "000000000350-000000000600",
    ]
    assert not [path for path in folder.rglob("*") if path.name.startswith(".tmp-")]


# --- the command line -------------------------------------------------------------------------


def randq(arguments, env, before="pass"):
    code = f"import sys; from randq.cli import main; {before}; main(sys.argv[1:])"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=env, **pipes)


def wait_for(path, process, seconds=120):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_second_process_is_refused_and_a_signal_stops_the_first_with_a_word(tmp_path, cache):
    run = tmp_path / "out" / "ddqn" / "CartPole-v1" / "seed-0"
    command = ["train", "ddqn", *HOST, "--steps", "1000000", "--out", str(tmp_path / "out")]
    first = randq(command, cache)
    try:
        wait_for(run / METRICS, first)
        for again in (["resume", str(run)], [*command, "--overwrite"]):
            second = randq(again, cache)
            _, error = second.communicate(timeout=120)
            assert second.returncode == 1
            assert f"process {first.pid} is at work on this run" in error
            assert "Traceback" not in error
        assert RunDirectory(run).summary().status == "running"
        first.send_signal(signal.SIGTERM)
        _, error = first.communicate(timeout=60)
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in error
    assert f"randq resume {run}" in error
    assert RunDirectory(run).summary().status == "interrupted"
    assert list((run / "checkpoints").iterdir())


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
"""
"""As if a disk were full: no file can be longer than this."""


def test_a_full_disk_stops_a_run_that_can_go_on(tmp_path, cache):
    settings = ["--steps", "400", "--agent.hidden", "8", "--agent.replay-capacity", "300"]
    command = ["train", "ddqn", *HOST, *settings, "--log-every", "1", "--checkpoint-every", "0"]
    whole = randq([*command, "--out", str(tmp_path / "whole")], cache)
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    # No cache for this one, whose files would be too long as well.
    lone = {**cache, "JAX_COMPILATION_CACHE_DIR": "/proc/nowhere"}
    full = randq([*command, "--out", str(tmp_path / "full")], lone, before=f"exec({FULL!r})")
    _, error = full.communicate(timeout=300)
    assert full.returncode == 1, error
    assert "cannot be written" in error
    assert "Traceback" not in error
    run = tmp_path / "full" / "ddqn" / "CartPole-v1" / "seed-0"
    assert RunDirectory(run).summary().status == "failed"
    again = randq(["resume", str(run)], cache)
    again.communicate(timeout=300)
    assert again.returncode == 0
    same_runs(tmp_path / "whole", tmp_path / "full")

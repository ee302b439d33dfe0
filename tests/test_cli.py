"""`randq train` and `randq list`, as they are typed."""

import csv
import json
import re
import subprocess
import sys
from types import ModuleType

import pytest

import randq
from randq.__main__ import main as command
from randq.cli import RegressionCommand, TrainCommand, _train_default, main
from randq.config import flat, override
from randq.envs import ENVIRONMENTS
from randq.exploration import Epsilon, OrnsteinUhlenbeck
from randq.presets import PRESETS, preset, suited
from randq.runs.plan import find_domain

KEYS = {
    *("agent", "env", "seeds", "median_solved_at", "solved_fraction"),
    *("steps_per_second", "seconds"),
}


def test_train_prints_one_json_object_and_keeps_every_episode(tmp_path, capsys):
    options = ["--env", "nchain", "--env.length", "4", "--agent.epsilon.end", "0.05", "--json"]
    budget = ["--seeds", "2", "--seed", "5", "--episodes", "3", "--out", str(tmp_path / "run")]
    main(["train", "ddqn", *options, *budget])
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert set(summary) == KEYS
    assert [row["seed"] for row in summary["seeds"]] == [5, 6]
    assert {"seed", "solved_at", "episodes", "final_return"} <= set(summary["seeds"][0])
    assert "median" in err
    for seed, row in zip((5, 6), summary["seeds"], strict=True):
        folder = tmp_path / "run" / "ddqn" / "nchain" / f"seed-{seed}"
        result = json.loads((folder / "result.json").read_text())
        assert row.items() <= result.items()
        rows = list(csv.DictReader((folder / "episodes.csv").read_text().splitlines()))
        assert [row["episode"] for row in rows] == ["1", "2", "3"]
        agent = randq.load(folder)
        assert agent.steps == 36
        assert agent.q_values([1.0, 1.0, 0.0, 0.0]).shape == (2,)


def test_train_in_a_gymnasium_environment_keeps_episodes_and_agents(tmp_path, capsys):
    kwargs = ["--env-kwargs", '{"is_slippery": false}', "--out", str(tmp_path)]
    small = ["--agent.learning-starts", "30", "--agent.hidden", "8"]
    small += ["--steps", "60", "--seeds", "2", "--seed", "3", "--json"]
    main(["train", "ddqn", "--env", "FrozenLake-v1", *kwargs, *small])
    summary = json.loads(capsys.readouterr().out)
    assert set(summary) == KEYS
    assert (summary["agent"], summary["env"]) == ("ddqn", "FrozenLake-v1")
    assert [row["seed"] for row in summary["seeds"]] == [3, 4]
    runs = tmp_path / "ddqn" / "FrozenLake-v1"
    for row in summary["seeds"]:
        lines = (runs / f"seed-{row['seed']}" / "episodes.csv").read_text().splitlines()
        assert len(list(csv.DictReader(lines))) == row["episodes"] > 0
    agent = randq.load(runs / "seed-4")
    assert agent.steps == 60
    assert agent.settings.hidden == (8,)


def test_what_goes_wrong_in_a_run_is_one_sentence(tmp_path, capsys):
    wild = ["--agent.learning-rate", "1e9", "--agent.loss", "squared"]
    wild += ["--agent.max-grad-norm", "None", "--agent.learning-starts", "40"]
    with pytest.raises(SystemExit) as stop:
        main(["train", "dqn", "--env", "CartPole-v1", *wild, "--out", str(tmp_path), "--json"])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert "learning diverged" in error
    assert "Traceback" not in error
    assert randq.load(tmp_path / "dqn" / "CartPole-v1" / "seed-0").steps > 0
    main(["runs", str(tmp_path), "--json"])
    (run,) = json.loads(capsys.readouterr().out)
    assert run["status"] == "failed"
    assert "learning diverged" in run["why"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dqn", "--env", "Pendulum-v1"], ["agent: got 'dqn'", "actions that are numbers: ddpg"]),
        (["dqn", "--env", "CartPole-v1", "--steps", "0"], ["steps: got 0"]),
        (["dqn", "--env", "CartPole-v1", "--env-kwargs", "3"], ["env_kwargs: got '3'", "JSON"]),
        (["mnf-dqnn"], ["agent", "'mnf-dqnn'", "did you mean 'mnf-dqn'"]),
        (["mnf-dqn", "--env", "nchan"], ["env", "'nchan'", "did you mean 'nchain'"]),
        (["mnf-dqn", "--env.length", "1"], ["length: got 1", "takes an integer >= 2"]),
        (["mnf-dqn", "--agent.gamma", "2"], ["gamma: got 2.0", "takes a number from 0 to 1"]),
        (["mnf-dqn", "--evaluate-every", "0"], ["evaluate_every: got 0", "an integer >= 1"]),
        (
            ["mnf-dqn", "--env", "cart_pole", "--agent.update-every", "None"],
            ["update_every: got None", "differ in length"],
        ),
        (["mnf-dqn", "--episodes", "1", "--steps", "1"], ["steps: got 1", "--episodes"]),
        (["mnf-dqn", "--seeds", "0"], ["seeds: got 0", "takes an integer >= 1"]),
        (["mnf-dqn", "--out", "/proc/run"], ["out: got '/proc/run'", "written"]),
    ],
)
def test_bad_settings_of_train_are_refused_before_anything_runs(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments])
    assert stop.value.code == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    ("arguments", "epsilon", "noise"),
    [
        (["mnf-dqn", "--env", "nchain"], None, ...),
        (["mnf-dqn", "--env", "nchain", "--agent.epsilon", "on"], Epsilon(), ...),
        (["mnf-dqn", "--env", "nchain", "--agent.epsilon.end=0.2"], Epsilon(end=0.2), ...),
        (["ddqn", "--env", "nchain", "--agent.epsilon", "off"], None, ...),
        (["ddpg", "--env", "pendulum", "--agent.noise", "off"], ..., None),
        (
            ["mnf-ddpg", "--env", "pendulum", "--agent.noise.sigma", "0.3"],
            ...,
            OrnsteinUhlenbeck(sigma=0.3),
        ),
    ],
)
def test_parts_of_an_agent_are_options_whether_it_has_them_or_not(
    arguments, epsilon, noise, monkeypatch
):
    seen = []
    monkeypatch.setattr(TrainCommand, "check", lambda command: seen.append(command.agent))
    monkeypatch.setattr(TrainCommand, "run", lambda command, console: None)
    main(["train", *arguments])
    (agent,) = seen
    assert epsilon is ... or agent.epsilon == epsilon
    assert noise is ... or agent.noise == noise


def test_a_part_is_on_or_off(capsys):
    with pytest.raises(SystemExit):
        main(["train", "mnf-ddpg", "--env", "pendulum", "--agent.thompson", "maybe"])
    assert "agent.thompson: got 'maybe', takes one of on, off" in capsys.readouterr().err


def test_list_names_everything_and_guesses(capsys):
    for what, names in {"agents": PRESETS, "envs": ["nchain"], "experiments": ["figure1"]}.items():
        main(["list", what])
        out = capsys.readouterr().out
        assert all(name in out for name in names)
    with pytest.raises(SystemExit):
        main(["list", "agent"])
    assert "did you mean 'agents'" in capsys.readouterr().err


@pytest.mark.parametrize("env", ["nchain", "CartPole-v1", "Pendulum-v1"])
def test_the_presets_are_those_of_an_environment(capsys, env, monkeypatch):
    """What all agents have in common comes first, then each with what is its own."""
    monkeypatch.setenv("COLUMNS", "10000")
    main(["list", "presets", "--env", env])
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    agents = suited(find_domain(env))
    assert [row[0] for row in rows] == ["all", *agents]
    shared = rows[0][1].removeprefix("of them").strip()
    for (_, own), agent in zip(rows[1:], agents.values(), strict=True):
        named = {f"{name} {value}" for name, value in flat(agent).items()}
        assert set(re.split(r", (?=[a-z])", f"{shared}, {own.strip()}")) == named


def test_a_setting_has_one_name():
    assert flat(Epsilon(end=0.1)) == {"start": 1.0, "end": 0.1, "decay": 1000, "unit": "episodes"}
    named = flat(preset("dqn", "nchain"))
    assert (named["epsilon"], named["epsilon.end"]) == ("Epsilon", 0.1)
    assert override(preset("dqn", "nchain"), {"epsilon.end": 0.2}).epsilon.end == 0.2


def test_the_agent_may_follow_the_environment(tmp_path):
    for words in (["ddqn", "--env", "deep_sea"], ["--env", "deep_sea", "ddqn"]):
        rest = [*words, "--seeds", "2"]
        plan = _train_default(rest)
        assert (plan.name, plan.env) == ("ddqn", ENVIRONMENTS["deep_sea"]())
        assert rest == ["--seeds", "2"]


@pytest.mark.parametrize("words", [["reproduce", "figure1"], ["search", "nchain"]])
def test_looking_makes_no_folder(capsys, tmp_path, words):
    nowhere = tmp_path / "nowhere"
    with pytest.raises(SystemExit):
        main([*words, "--look", "--out", str(nowhere)])
    assert f"out: got '{nowhere}', takes a folder with results" in capsys.readouterr().err
    assert not nowhere.exists()


def test_python_runs_the_package_as_the_command():
    asked = [sys.executable, "-m", "randq", "--version"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert found.stdout == f"randq {randq.__version__}\n"


@pytest.mark.parametrize("where", ["import", "run"])
def test_ctrl_c_is_no_traceback(monkeypatch, capsys, where):
    def interrupt(*_):
        raise KeyboardInterrupt

    class Importing(ModuleType):
        __getattr__ = interrupt

    if where == "import":
        monkeypatch.setitem(sys.modules, "randq.cli", Importing("randq.cli"))
    else:
        monkeypatch.setattr(sys, "argv", ["randq", "regression"])
        monkeypatch.setattr(RegressionCommand, "run", interrupt)
    with pytest.raises(SystemExit) as stopped:
        command()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "randq: stopped\n"


@pytest.mark.parametrize("arguments", [["train", "--help"], ["list", "envs"], ["--help"]])
def test_a_reader_that_has_seen_enough_is_no_error(arguments):
    """As in `randq train --help | head`."""
    asked = [sys.executable, "-m", "randq", *arguments]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1

"""Settings files: what they leave out, what they give back, and all that can be wrong at once."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from randq.envs import NChain
from randq.runs.plan import CompiledPlan, GymPlan, default_plan, read_plan
from randq.settings import to_json


@pytest.mark.parametrize(
    ("name", "env"),
    [("mnf-dqn", "nchain"), ("bdqn", "deep_sea"), ("boot-dqn-prior", "CartPole-v1")],
)
def test_a_plan_comes_back_as_it_was(name, env):
    plan = default_plan(name, env).resolved
    data = json.loads(json.dumps(to_json(plan)))
    assert read_plan(data) == plan
    assert read_plan(data).resolved == plan


def test_what_a_file_leaves_out_is_as_it_comes():
    data = {"name": "bbqn", "env": {"kind": "nchain", "length": 7}, "agent": {"gamma": 0.5}}
    plan = read_plan(data)
    whole = default_plan("bbqn", "nchain")
    assert isinstance(plan, CompiledPlan)
    assert plan.env == NChain(length=7)
    assert plan.agent.gamma == 0.5
    assert plan.agent.posterior == whole.agent.posterior
    assert plan.agent.truncation_terminates  # of the domain
    assert read_plan({"name": "bbqn", "env": "nchain"}) == whole
    other = read_plan({"name": "ddqn", "env": "CartPole-v1", "agent": {"epsilon": {"end": 0.5}}})
    assert isinstance(other, GymPlan)
    assert other.agent.epsilon.end == 0.5
    assert other.agent.epsilon.decay == 10_000  # of the domain
    kind = read_plan({"name": "mnf-dqn", "agent": {"posterior": {"kind": "point"}}})
    assert type(kind.agent.posterior).__name__ == "Point"


# Each with a path that the complaint must begin with, and a bad value.
FAULTS = {
    "name": ("mnf-dqnn", "did you mean 'mnf-dqn'"),
    "seeds": (0, "an integer >= 1"),
    "seed": (-1, "an integer >= 0"),
    "evaluate_every": ("often", "an integer"),
    "checkpoint_every": (-1.0, "a number from 0"),
    "tensorboard": (1, "true or false"),
    "sedes": (3, "did you mean 'seeds'"),
    "agent.gamma": (2.0, "a number from 0 to 1"),
    "agent.batch_size": (20_000, "at most replay_capacity = 10000"),
    "agent.hidden": ([16, "x"], "an integer"),
    "agent.loss": ("hubber", "did you mean 'huber'"),
    "agent.posterior.prior_std": (-1.0, "a finite number > 0"),
    "agent.posterior.nonsense": (None, "one of"),
    "env.length": (1, "an integer >= 2"),
    "env.features": ("hot", "one of"),
}


@given(faults=st.sets(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=6))
def test_every_fault_is_told_at_once_with_its_path(faults):
    data = copy.deepcopy(to_json(default_plan("bbqn", "nchain")))
    for fault in faults:
        *path, last = fault.split(".")
        place = data
        for part in path:
            place = place[part]
        place[last] = FAULTS[fault][0]
    with pytest.raises(ValueError, match="got") as error:
        read_plan(data)
    lines = str(error.value).splitlines()
    assert len(lines) == len(faults)
    for fault in faults:
        (line,) = [line for line in lines if line.startswith((f"{fault}:", f"{fault}["))]
        assert FAULTS[fault][1] in line


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "name: got None, takes a string"),
        ({"name": "dqn", "env": "nchan"}, "env: got 'nchan', takes .*did you mean 'nchain'"),
        ({"name": "dqn", "env": 3}, "env.kind: got 3"),
        ({"name": "dqn", "env": {"kind": "chain"}}, "env.kind: got 'chain'.*did you mean 'nchain'"),
        ({"name": "dqn", "env": "this:CartPole-v1"}, "env: got 'this:CartPole-v1'.*--trust"),
        ({"name": "dqn", "env": "CartPole-v1", "env_kwargs": "["}, "env_kwargs: got '\\['"),
        ({"name": "dqn", "env": "CartPole-v1", "episodes": 3}, "episodes: got 'episodes'"),
        (
            {"name": "dqn", "env": "CartPole-v1", "steps": 100},
            "agent.learning_starts: got 500, takes fewer than the 100 steps",
        ),
        (
            {"name": "dqn", "episodes": 1, "agent": {"learning_starts": 58}},
            "agent.learning_starts: got 58, takes fewer than the 18 steps",
        ),
        ({"name": "dqn", "episodes": 1, "steps": 1}, "steps: got 1, takes a budget only if"),
        ({"name": "dqn", "seed": 2**31 - 1, "seeds": 2}, "seed: got 2147483647"),
    ],
)
def test_contradictions_are_refused(data, sentence):
    if "episodes" in data and "agent" in data:
        data = {**data, "env": {"kind": "nchain", "length": 10}}
    with pytest.raises(ValueError, match=sentence):
        read_plan(data)


def test_a_module_is_imported_for_somebody_else_only_if_trusted(tmp_path, monkeypatch):
    (tmp_path / "strange.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="--trust"):
        read_plan({"name": "dqn", "env": "strange:Env-v0"})
    with pytest.raises(SystemExit, match="imported"):
        read_plan({"name": "dqn", "env": "strange:Env-v0"}, trust=True)

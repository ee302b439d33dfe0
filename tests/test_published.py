"""The records in docs/data: a command that is given them takes them as done."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from randq.sweep import GymJob

DATA = Path(__file__).parent.parent / "docs" / "data"
RUNS = sorted(path.parent for path in DATA.rglob("settings.json"))


def overrides(changed: str = "") -> dict[str, Any]:
    """What a run changes in a preset, which is the name of a folder that it is in."""
    pairs = (setting.split("=") for setting in changed.split(",") if setting)
    return {name: ast.literal_eval(value) for name, value in pairs}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.relative_to(DATA)))
def test_taken_as_done(run: Path) -> None:
    settings = json.loads((run / "settings.json").read_text())
    shared = ("steps", "evaluate_every", "evaluation_episodes", "log_every")
    experiment, _, *changed = run.relative_to(DATA).parts[:-3]
    job = GymJob(
        settings["name"],
        settings["env"],
        int(run.name.removeprefix("seed-")),
        overrides=overrides(*changed),
        **{name: settings[name] for name in shared},
    )
    folder = DATA / experiment
    assert job.directory(folder).path == run

    found = job.found(folder)  # it would refuse a run with other settings than today's

    assert found is not None
    assert found.finished
    assert found.result["steps"] == settings["steps"]
    assert found.result["evaluations"]
    assert found.result["episodes"]

"""The records in docs/data: a command that is given them takes them as done."""

import json
from pathlib import Path

import pytest

from randq.sweep import GymJob

DATA = Path(__file__).parent.parent / "docs" / "data"
RUNS = sorted(path.parent for path in DATA.rglob("settings.json"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.relative_to(DATA)))
def test_taken_as_done(run: Path) -> None:
    settings = json.loads((run / "settings.json").read_text())
    shared = ("steps", "evaluate_every", "evaluation_episodes", "log_every")
    job = GymJob(
        settings["name"],
        settings["env"],
        int(run.name.removeprefix("seed-")),
        **{name: settings[name] for name in shared},
    )
    folder = DATA / run.relative_to(DATA).parts[0]
    assert job.directory(folder).path == run

    found = job.found(folder)  # it would refuse a run with other settings than today's

    assert found is not None
    assert found.finished
    assert found.result["steps"] == settings["steps"]
    assert found.result["evaluations"]
    assert found.result["episodes"]

"""Every example runs as its reader would run it. The contract tests ask more of `new_posterior`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import randq

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    few_steps = ["20"] if path.stem == "regression" else []
    command = [sys.executable, "-W", "error", str(path), *few_steps]
    env = {**os.environ, "PYTHONPATH": str(Path(randq.__file__).parents[1].absolute())}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_new_posterior_takes_less_than_60_lines():
    (path,) = (path for path in EXAMPLES if path.stem == "new_posterior")
    assert len(path.read_text().splitlines()) < 60

"""The README's promises that a test can hold it to."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("README.md", ["spread", "one draw's action", "cost"]),
        ("docs/design.md", []),
        ("docs/your_environment.md", ["returns=(1.0, 1.0, 1.0)", "(200, 21, 2)", "the reward nan"]),
    ],
)
def test_python_blocks_run_one_after_the_other(page, says, tmp_path):
    """As a reader runs them: in a process without this session's checks of types."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    command = [sys.executable, "-c", "\n".join(blocks)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for words in says:
        assert words in run.stdout


def test_links_and_pictures_exist():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"

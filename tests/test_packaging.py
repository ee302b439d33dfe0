"""Set-up: pins that name no host, a whole wheel, and one clear sentence for each failure."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# In parts, so that this file does not name them either.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("conda", "anaconda", "org"),
        ("registry", "npmjs", "org"),
        ("deb", "debian", "org"),
    )
]
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:root|home|Users|work|opt)/\w")

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [re.split("[;#]", line)[0].strip() for line in lines]
    return {
        canonicalize_name(name): version for name, version in (p.split("==") for p in pinned if p)
    }


def declared() -> list[Requirement]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


# What the repository says


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    if not (shutil.which("git") and (ROOT / ".git").exists()):
        pytest.skip("needs a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    offences = []
    for path in (ROOT / name for name in names.split("\0") if name):
        try:
            text = path.read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        offences += [(path.name, host) for host in REGISTRIES if host in text]
        offences += [(path.name, found) for found in MACHINE_PATH.findall(text)]
    assert not offences


def test_pins_and_locks_hold_no_address() -> None:
    locks = [
        p
        for pattern in ("*.lock", "*constraints*.txt", "*requirements*.txt", "pylock*")
        for p in ROOT.glob(pattern)
    ]
    assert ROOT / "constraints.txt" in locks
    assert not [p.name for p in locks if p.name != "uv.lock" and "://" in p.read_text()]
    for name, version in pins().items():
        assert re.fullmatch(r"[a-z0-9-]+", name), name
        assert re.fullmatch(r"[0-9][0-9a-z.+]*", version), version


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_every_declared_dependency_is_pinned_within_its_bounds(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_what_the_core_pulls_in_is_pinned_too() -> None:
    pinned, todo, seen = pins(), [Requirement(d) for d in PROJECT["dependencies"]], set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        environments = [{"extra": extra} for extra in requirement.extras or {""}]
        if name in seen:
            continue
        seen.add(name)
        children = [Requirement(text) for text in requires(name) or []]
        todo += [
            child
            for child in children
            if child.marker is None or any(child.marker.evaluate(e) for e in environments)
        ]
    assert {"jaxlib", "scipy"} <= seen
    assert seen <= pinned.keys()


def test_ci_runs_lint_and_then_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert [c for c in script.read_text().splitlines() if c.startswith("make")] == [
        "make lint",
        "make test",
    ]
    readme = (ROOT / "README.md").read_text()
    assert "make test" in readme
    assert "make reproduce" in readme


@needs_make
@pytest.mark.parametrize(
    ("target", "command"), [("reproduce", ".venv/bin/randq"), ("test", "pytest")]
)
def test_make_knows_the_two_commands(target: str, command: str) -> None:
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        ["make", "-n", target, "ARGS=-k golden"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    setup, run = done.stdout.splitlines()
    assert setup.startswith("sh scripts/setup.sh")
    assert command in run
    assert run.endswith("-k golden")


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    source = tmp_path / "src" / "randq"
    shutil.copytree(ROOT / "src" / "randq", source, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "data").mkdir(exist_ok=True)
    (source / "data" / "probe.json").write_text("{}")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = (tmp_path / "out").iterdir()
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("randq/")}
    assert packed == {
        p.relative_to(source.parent).as_posix() for p in source.rglob("*") if p.is_file()
    }


# What scripts/setup.sh does, with pretended interpreters

TOOLS = ("sh", "cat", "chmod", "cksum", "cp", "dirname", "mkdir", "mktemp", "rm", "sed", "tail")
INTERPRETER = """#!/bin/sh
echo "$*" >>"$CALLS"
case $* in
*version_info*) echo "$VERSION"; exit "${OLD:-0}" ;;
*ensurepip*) exit "${NO_VENV:-0}" ;;
*"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
*"-m pip"*) printf '%s\\n' "${PIP_SAYS:-fine}"; [ -z "${PIP_SAYS:-}" ] ;;
esac
"""


class Checkout:
    """A copy of what set-up reads, in a folder with a space; its PATH has TOOLS and no Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a checkout"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        (self.folder / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        for name in ("pyproject.toml", "constraints.txt", "scripts/setup.sh"):
            shutil.copy(ROOT / name, self.folder / name)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)

    def add_python(self, name: str = "python3") -> None:
        (self.bin / name).write_text(INTERPRETER)
        (self.bin / name).chmod(0o755)

    def setup(self, *extras: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run set-up; `calls` then holds what it asked of the interpreters."""
        self.calls.write_text("")
        env = {"PATH": str(self.bin), "CALLS": str(self.calls), "VERSION": "3.12.1", **env}
        command = ["sh", "scripts/setup.sh", *extras]
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)

    def made_anew(self) -> bool:
        return "-m venv --clear" in self.calls.read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def assert_one_sentence(done: subprocess.CompletedProcess[str], *says: str) -> None:
    assert done.returncode != 0
    assert done.stderr.startswith("setup: ")
    assert done.stderr.count("\n") == 1
    assert re.findall(r"[.!?](?=\s|$)", done.stderr) == ["."]
    assert done.stderr.endswith(".\n")
    for phrase in says:
        assert phrase in done.stderr


def test_no_python(checkout: Checkout) -> None:
    assert_one_sentence(checkout.setup(), "no Python was found", "install 3.11 or newer")


def test_the_python_asked_for_does_not_run(checkout: Checkout) -> None:
    checkout.add_python()
    assert_one_sentence(
        checkout.setup(PYTHON="no such python"), "PYTHON=no such python does not run"
    )


def test_python_too_old(checkout: Checkout) -> None:
    checkout.add_python()
    assert_one_sentence(
        checkout.setup(VERSION="3.9.2", OLD="1"), "python3 is Python 3.9.2", "3.11 or newer"
    )
    assert not (checkout.folder / ".venv").exists()


def test_the_oldest_python_is_the_one_that_the_package_declares() -> None:
    (bound,) = re.findall(r"v < \((\d+), (\d+)\)", (ROOT / "scripts" / "setup.sh").read_text())
    assert PROJECT["requires-python"] == ">=" + ".".join(bound)


def test_an_old_python3_is_passed_over_for_a_newer_one(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    (checkout.bin / "python3").write_text("#!/bin/sh\necho 3.9.2\nexit 1\n")
    (checkout.bin / "python3").chmod(0o755)
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert "making .venv (Python 3.12.1)" in done.stdout


def test_venv_module_missing(checkout: Checkout) -> None:
    checkout.add_python()
    assert_one_sentence(checkout.setup(NO_VENV="1"), "venv", "apt install python3.12-venv")


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("WARNING: Retrying after Failed to establish a new connection", "check the network"),
        (
            "ERROR: No matching distribution found for jaxx",
            "No matching distribution found for jaxx",
        ),
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: [Errno 13] Permission denied: 'x'", "right to write"),
    ],
)
def test_pip_fails(checkout: Checkout, output: str, says: str) -> None:
    checkout.add_python()
    assert_one_sentence(checkout.setup("dev", PIP_SAYS=output), says)
    assert (checkout.folder / ".venv" / "setup.log").read_text() == output + "\n"
    assert checkout.setup("dev").returncode == 0
    assert checkout.made_anew()  # what a failure left behind is not trusted


def test_a_second_call_has_nothing_to_do(checkout: Checkout) -> None:
    checkout.add_python()
    first = checkout.setup("dev")
    assert (first.returncode, first.stderr) == (0, "")
    assert "--constraint constraints.txt --editable .[dev]" in checkout.calls.read_text()
    for extras in (["dev"], []):  # the core is part of dev
        again = checkout.setup(*extras)
        assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
        assert not checkout.calls.read_text()


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_the_requirements_is_installed(checkout: Checkout, changed: str) -> None:
    checkout.add_python()
    checkout.setup()
    with (checkout.folder / changed).open("a") as file:
        file.write("\n# changed\n")
    assert checkout.setup().returncode == 0
    assert "-m pip" in checkout.calls.read_text()
    assert not checkout.made_anew()


def test_more_extras_are_added_to_what_is_there(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.setup()
    assert checkout.setup("dev").returncode == 0
    assert ".[dev]" in checkout.calls.read_text()
    assert not checkout.made_anew()


def test_a_failed_addition_leaves_nothing_that_is_trusted(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.setup()
    assert checkout.setup("dev", PIP_SAYS="ERROR: half done").returncode != 0
    assert checkout.setup().returncode == 0
    assert checkout.made_anew()


def spoil_nothing_finished(folder: Path) -> None:
    (folder / ".venv" / ".ready").unlink()


def spoil_interpreter_gone(folder: Path) -> None:
    (folder / ".venv" / "bin" / "python").unlink()


def spoil_moved(folder: Path) -> None:
    ready = folder / ".venv" / ".ready"
    ready.write_text(ready.read_text().replace("a checkout", "elsewhere"))


@pytest.mark.parametrize("spoil", [spoil_nothing_finished, spoil_interpreter_gone, spoil_moved])
def test_a_venv_that_cannot_be_trusted_is_made_anew(
    checkout: Checkout, spoil: Callable[[Path], None]
) -> None:
    checkout.add_python()
    checkout.setup()
    spoil(checkout.folder)
    assert checkout.setup().returncode == 0
    assert checkout.made_anew()

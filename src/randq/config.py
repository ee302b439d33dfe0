"""Validated settings: every refusal names the setting, what it got and what it takes."""

import dataclasses
import difflib
import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeGuard, get_args, get_type_hints

import jax
import jax.numpy as jnp


def require(ok: bool, setting: str, got: object, takes: str) -> None:
    """Raise the one kind of error that bad input gets."""
    if not ok:
        raise ValueError(f"{setting}: got {got!r}, takes {takes}")


def whole(setting: str, got: object, at_least: int) -> None:
    """Require an integer that is large enough (and not a bool that looks like one)."""
    ok = isinstance(got, int) and not isinstance(got, bool) and got >= at_least
    require(ok, setting, got, f"an integer >= {at_least}")


def _is_number(got: object) -> TypeGuard[float]:
    return isinstance(got, int | float) and not isinstance(got, bool)


def number(setting: str, got: object, above: float = 0.0) -> None:
    """Require a finite number above a bound."""
    ok = _is_number(got) and above < float(got) < float("inf")
    require(ok, setting, got, f"a finite number > {above:g}")


def within(setting: str, got: object, low: float, high: float) -> None:
    """Require a number in a closed interval."""
    ok = _is_number(got) and low <= float(got) <= high
    require(ok, setting, got, f"a number from {low:g} to {high:g}")


def one_of(setting: str, got: object, options: Iterable[str]) -> None:
    """Require one of a few words, and guess which one was meant."""
    options = list(options)
    takes = "one of " + ", ".join(options) if options else "nothing: there is none"
    if close := difflib.get_close_matches(str(got), options, n=1):
        takes += f" (did you mean {close[0]!r}?)"
    require(got in options, setting, got, takes)


def writable_folder(setting: str, got: Path) -> None:
    """Require a folder that files can be written to, and make it if it is not there."""
    try:
        got.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=got):
            pass
    except OSError as error:
        require(False, setting, str(got), f"a folder that can be written to ({error.strerror})")


def available_memory(root: Path = Path("/")) -> float:
    """Bytes of memory that this machine, or the container that this is, can still give; infinite
    where neither says."""
    memory, group = _table(root / "proc/meminfo"), root / "sys/fs/cgroup"
    machine = 1024 * memory.get("MemAvailable:", math.inf)
    try:
        limit, used = (float((group / f"memory.{x}").read_text()) for x in ("max", "current"))
    except (OSError, ValueError):  # no container, or one without a limit, whose word is "max"
        return machine
    # What files have in memory can be had back.
    return min(machine, limit - used + _table(group / "memory.stat").get("inactive_file", 0.0))


def _table(path: Path) -> dict[str, float]:
    """The first number of each line of a file of the system, by the word before it."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
        return {row[0]: float(row[1]) for row in rows if len(row) > 1}
    except (OSError, ValueError):
        return {}


def replay_fits(size: int, capacity: int, at_once: int = 1) -> None:
    """Refuse replays of so many bytes, each of so many rows, if so many of them at once are larger
    than the memory of this machine."""
    free = available_memory()
    takes = f"a replay that fits into the {free / 1e9:.1f} GB of memory that are free"
    got = f"{capacity} transitions of {size / 1e9:.1f} GB together"
    if at_once > 1:
        got = f"{at_once} runs at once with {got}"
        takes = f"{takes}, or fewer workers"
    require(size * at_once < 0.9 * free, "replay_capacity", got, takes)


def floating(setting: str, got: Any) -> jnp.dtype:
    """Require a floating-point dtype that JAX will honour rather than silently truncate."""
    try:
        dtype = jnp.dtype(got)
    except TypeError:
        dtype = None
    if dtype == jnp.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        takes = 'float32, or float64 after jax.config.update("jax_enable_x64", True)'
        require(False, setting, "float64", takes)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        require(False, setting, got, "a floating-point dtype such as float32")
    assert dtype is not None
    return dtype


def override(record: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a settings record with some fields changed; `posterior.prior_std` is one inside."""
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        options = field_names(record) if dataclasses.is_dataclass(record) else []
        one_of(f"setting of {type(record).__name__}", first, options)
        value = override(getattr(record, first), {rest: value}) if rest else tuples(value)
        record = dataclasses.replace(record, **{first: value})
    return record


def field_names(record: Any) -> list[str]:
    """The settings of a record, or of a class of records."""
    return [field.name for field in dataclasses.fields(record)]


def flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting of a record by its dotted name; a record inside is also named by its class."""
    found: dict[str, Any] = {}
    for name in field_names(record):
        value = getattr(record, name)
        if dataclasses.is_dataclass(value):
            found[prefix + name] = type(value).__name__
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def parts(record: Any) -> dict[str, type]:
    """The records inside a record that may also be missing, each with its class."""
    found: dict[str, type] = {}
    for name, hint in get_type_hints(type(record)).items():
        kinds: tuple[type, ...] = get_args(hint)
        records = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
        if records and NoneType in kinds:
            found[name] = records[0]
    return found


def tuples(value: Any) -> Any:
    """JSON has lists where settings have tuples."""
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value

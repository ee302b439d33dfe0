"""Validated settings: every refusal names the setting, what it got and what it takes."""

import difflib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

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
    takes = "one of " + ", ".join(options)
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

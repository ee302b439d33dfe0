"""Checkpoints of a run: all that is needed to go on as if nothing had happened.

A checkpoint is one file of plain arrays and JSON (`storage`), by the number of its step. The last
two are kept. A large replay stays out of them: its transitions go to *segments*, files that are
written once, each with what was new at one checkpoint; so a checkpoint costs what has changed. A
segment is deleted when no checkpoint needs it any more.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from randq import storage
from randq.runs.directory import CHECKPOINTS, REPLAY
from randq.storage import StorageError
from randq.types import PyTree

KEPT = 2


class Checkpoints:
    """The checkpoints in the folder of a run."""

    def __init__(self, run: Path, may_be_nan: Callable[[str], bool] = lambda name: False) -> None:
        self._folder = run / CHECKPOINTS
        self._may_be_nan = may_be_nan

    @property
    def steps(self) -> list[int]:
        """Of which steps there are checkpoints, the latest first."""
        names = (re.fullmatch(r"(\d{12,15})\.randq", path.name) for path in self._paths())
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def save(self, step: int, tree: PyTree, header: dict[str, Any]) -> None:
        storage.save(self._path(step), tree, header, self._may_be_nan)

    def header(self, step: int) -> dict[str, Any]:
        return storage.read_header(self._path(step))

    def load(self, step: int, like: PyTree) -> PyTree:
        return storage.load(self._path(step), like, self._may_be_nan)

    def prune(self) -> None:
        """Delete all but the last ones."""
        for step in self.steps[KEPT:]:
            self._path(step).unlink(missing_ok=True)

    def drop(self, after: int) -> None:
        """Delete those after a step, which cannot be used and would be taken for newer ones."""
        for step in self.steps:
            if step > after:
                self._path(step).unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return list(self._folder.iterdir()) if self._folder.is_dir() else []

    def _path(self, step: int) -> Path:
        return self._folder / f"{step:012}.randq"


class Segments:
    """Numbered rows on disk, a file for each stretch of them. The rows of an array share a type."""

    def __init__(self, run: Path) -> None:
        self._folder = run / REPLAY

    def add(self, start: int, rows: Sequence[np.ndarray]) -> None:
        """Keep further rows, from this number on."""
        if len(rows[0]):
            self._folder.mkdir(exist_ok=True)
            path = self._path(start, start + len(rows[0]))
            storage.save(path, list(rows), {"start": start, "end": start + len(rows[0])})

    def read(
        self, start: int, end: int, like: Sequence[Any]
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """The rows from `start` to `end`, in stretches that begin at the numbers given."""
        at = start
        for first, last in self._stretches():
            if last <= at or first >= end:
                continue
            if first > at:
                break
            path, count = self._path(first, last), last - first
            if storage.read_header(path) != {"start": first, "end": last}:
                raise StorageError(f"{path}: holds other transitions")
            shapes = [jax.ShapeDtypeStruct((count, *x.shape), x.dtype) for x in like]
            rows = storage.load(path, with_zeros(shapes))
            yield at, [x[at - first : min(last, end) - first] for x in rows]
            at = min(last, end)
        if at < end:
            raise StorageError(f"{self._folder}: lacks the transitions from {at} to {end}")

    def prune(self, before: int) -> None:
        """Delete what holds nothing but rows before this number."""
        for first, last in self._stretches():
            if last <= before:
                self._path(first, last).unlink(missing_ok=True)

    def drop(self, after: int) -> None:
        """Delete what holds rows from this number on: they have yet to be written again."""
        for first, last in self._stretches():
            if last > after:
                self._path(first, last).unlink(missing_ok=True)

    def _stretches(self) -> list[tuple[int, int]]:
        paths = list(self._folder.iterdir()) if self._folder.is_dir() else []
        names = (re.fullmatch(r"(\d{12,15})-(\d{12,15})\.randq", path.name) for path in paths)
        return sorted((int(name[1]), int(name[2])) for name in names if name)

    def _path(self, first: int, last: int) -> Path:
        return self._folder / f"{first:012}-{last:012}.randq"


def with_zeros(like: PyTree) -> PyTree:
    """A tree of shapes as arrays that take no memory, for leaves that shall be read as numpy's."""
    return jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), like)

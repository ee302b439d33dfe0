"""What a job is: a record of plain data that can be performed, and what an engine says of it."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from randq.agents import Agent

Result = dict[str, Any]
"""What came of a job, as JSON has it."""

Watch = Callable[[float, str], None]
"""Takes how much of a job is done, from 0 to 1, and a few words on how it goes."""


class Found(NamedTuple):
    """What a folder has of a job."""

    result: Result
    finished: bool


class Job(ABC):
    """Something to run, as plain data. It is checked when it is made.

    A job is a frozen dataclass with a field `kind`, by which `randq.sweep.read_job` knows it.
    """

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """The job as plain data."""

    @classmethod
    @abstractmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The job that such data stand for."""

    @property
    @abstractmethod
    def agent_settings(self) -> Agent:
        """Settings of the agent in full."""

    @property
    @abstractmethod
    def settings(self) -> str:
        """All settings in full, so that a result is never taken for one of other settings."""

    @abstractmethod
    def perform(self, folder: Path, watch: Watch = lambda share, note: None) -> Result:
        """Run it in this process; what it keeps beside its result goes below a folder."""

    @abstractmethod
    def check(self, folder: Path) -> None:
        """Refuse what cannot be performed here, or not in this folder."""

    @abstractmethod
    def found(self, folder: Path) -> Found | None:
        """What the folder has of it beside the results of a sweep, finished or not."""

    @property
    def replay_size(self) -> int:
        """Bytes of its replay, where that is worth a look before it runs."""
        return 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be said before it runs."""
        return ()

    @property
    def key(self) -> str:
        """The same for two jobs if and only if they are the same."""
        return json.dumps([self.as_json(), self.settings], sort_keys=True)


class Underway(NamedTuple):
    """How far a job is."""

    job: Job
    share: float
    note: str


class Finished(NamedTuple):
    """What came of one job: a result, or why there is none."""

    job: Job
    result: Result | None
    error: str = ""

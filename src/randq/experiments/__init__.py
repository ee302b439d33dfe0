"""Experiments as data: which jobs each is made of, and what their results mean."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from randq.experiments.deep_sea import DEEP_SEA_SCALES
from randq.experiments.figure1 import FIGURE1_SCALES
from randq.experiments.figure2 import FIGURE2_SCALES
from randq.experiments.search import SEARCHES
from randq.sweep import Job


@runtime_checkable
class Experiment(Protocol):
    """Anything that is a list of jobs."""

    @property
    def about(self) -> str: ...

    def jobs(self) -> list[Job]: ...


EXPERIMENTS: Mapping[str, Mapping[str, Experiment]] = {
    "figure1": FIGURE1_SCALES,
    "figure2": FIGURE2_SCALES,
    "deep_sea": DEEP_SEA_SCALES,
}
"""Every experiment by name and scale."""

__all__ = ["EXPERIMENTS", "SEARCHES", "Experiment"]

"""Experiments as data: which jobs each is made of, and what their results mean."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from randq.config import one_of, require, whole
from randq.experiments.atari import FIGURE3_SCALES, FIGURE4_SCALES, FIGURE6_SCALES
from randq.experiments.deep_sea import DEEP_SEA_SCALES
from randq.experiments.figure1 import FIGURE1_SCALES
from randq.experiments.figure2 import FIGURE2_SCALES
from randq.experiments.figure5 import FIGURE5_SCALES
from randq.experiments.search import SEARCHES
from randq.sweep import Job


@runtime_checkable
class Experiment(Protocol):
    """Anything that is a list of jobs.

    One that can be run in pieces is a dataclass that names, as `pieces`, the fields that a command
    may narrow: names of which some can be chosen, or numbers that can be smaller. Those that are
    also in its `free` take any names.
    """

    @property
    def about(self) -> str: ...

    def jobs(self) -> Sequence[Job]: ...


def piece(experiment: Any, chosen: Mapping[str, Any]) -> Any:
    """The experiment with less of something."""
    for name, value in chosen.items():
        pieces = getattr(experiment, "pieces", ())
        only = f"only for: {', '.join(pieces)}" if pieces else "nothing"
        require(name in pieces, name, value, f"{only}; this experiment has no choice of it")
        all_of_it = getattr(experiment, name)
        if isinstance(value, tuple):
            require(len(value) > 0, name, value, "at least one of " + ", ".join(all_of_it))
            for each in value if name not in _free(experiment) else ():
                one_of(name, each, all_of_it)
        else:
            whole(name, value, at_least=1)
            require(value <= all_of_it, name, value, f"at most {all_of_it} at this scale")
    return replace(experiment, **chosen)


def shown(experiment: Any, chosen: Mapping[str, Any]) -> Any:
    """All that a piece is shown with: the experiment as short as the piece, and what it adds."""
    lengths = {name: value for name, value in chosen.items() if name in LENGTHS}
    added = {
        name: (*getattr(experiment, name), *value)
        for name, value in chosen.items()
        if name in _free(experiment)
    }
    return piece(experiment, {**lengths, **added})


def _free(experiment: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(experiment, "free", ())
    return names


LENGTHS = ("steps", "frames")
"""What makes runs shorter, so that they are other runs."""


EXPERIMENTS: Mapping[str, Mapping[str, Experiment]] = {
    "figure1": FIGURE1_SCALES,
    "figure2": FIGURE2_SCALES,
    "figure3": FIGURE3_SCALES,
    "figure4": FIGURE4_SCALES,
    "figure5": FIGURE5_SCALES,
    "figure6": FIGURE6_SCALES,
    "deep_sea": DEEP_SEA_SCALES,
}
"""Every experiment by name and scale."""

__all__ = ["EXPERIMENTS", "SEARCHES", "Experiment", "piece", "shown"]

"""What every report needs: where it goes, and how a table looks in a terminal and in a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Page:
    """A folder, a terminal, and the command that made what they show."""

    folder: Path
    about: str
    command: str
    console: Console


Answer = Literal["holds", "does not hold", "undecided"]
VERDICT_COLOURS: Mapping[Answer, str] = {
    "holds": "green",
    "does not hold": "red",
    "undecided": "yellow",
}


@dataclass(frozen=True)
class Verdict:
    """A claim, and what has come of it."""

    claim: str
    rule: str
    paper: str
    here: str
    verdict: Answer
    agreement: float | None = None
    """Share of resamples that give the same answer."""
    why: str = ""


def episodes(at: float, budget: int) -> str:
    """Episodes to solve; what is censored is said to be later than the budget."""
    return f"> {budget}" if at == float("inf") else f"{at:.0f}" if at == int(at) else f"{at:.1f}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table for a file, as lines."""
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def terminal(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The same table for a terminal."""
    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Claims, their rules and what has come of them, for a file."""
    return markdown(
        ("claim", "rule", "paper", "here", "verdict"),
        [
            (v.claim, v.rule, v.paper, v.here, f"**{v.verdict}**" + (v.why and f" ({v.why})"))
            for v in verdicts
        ],
    )


def verdict_table(title: str, verdicts: Sequence[Verdict]) -> Table:
    """Claims and what has come of them, for a terminal."""
    table = Table(title=title, show_lines=True)
    for column in ("claim", "paper", "here", "verdict"):
        table.add_column(column, overflow="fold")
    for v in verdicts:
        why = f"\n[dim]{v.why}[/dim]" if v.why else ""
        answer = f"[{VERDICT_COLOURS[v.verdict]}]{v.verdict}[/]{why}"
        table.add_row(v.claim, v.paper, v.here, answer)
    return table

"""Figures, in one style."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from randq.config import require, writable_folder
from randq.regression import Fit

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "savefig.dpi": 160,
}
BLUE, ORANGE, INK = "#2f6db3", "#d9822b", "#333333"


def require_writable(path: Path) -> None:
    """Refuse a file name that a figure cannot be saved under, before anything is computed."""
    require(path.suffix in (".png", ".pdf", ".svg"), "out", str(path), "a .png, .pdf or .svg file")
    require(not path.is_dir(), "out", str(path), "a file, not a folder")
    writable_folder("out", path.parent)


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure that is saved when the block ends. No global state and no display is touched."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(fig)
        yield fig
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path)


def regression(fits: Mapping[str, Fit], path: Path, seed: int = 0) -> None:
    """Every family on the data of one seed: the mean, and bands of 1, 2 and 3 deviations."""
    columns = min(4, len(fits))
    rows = -(-len(fits) // columns)
    with figure(path, 2.6 * columns, 2.2 * rows) as fig:
        axes = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for ax, (name, fit) in zip(axes.flat, fits.items(), strict=False):
            x, mean, std = (np.asarray(v) for v in (fit.grid, fit.mean[seed], fit.std[seed]))
            for k in (3, 2, 1):
                label = "mean ± 1, 2, 3\nstandard deviations" if k == 1 else None
                ax.fill_between(
                    x, mean - k * std, mean + k * std, color=BLUE, alpha=0.22, lw=0, label=label
                )
            ax.plot(x, mean, color=BLUE, lw=1.4)
            ax.plot(x, x**3, color=INK, lw=0.9, ls="--", label="$x^3$")
            ax.plot(fit.x[seed], fit.y[seed], "o", ms=3, color=ORANGE, label="data")
            ax.set_title(name)
            ax.set_xlim(-6, 6)
            ax.set_ylim(-200, 200)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        spare = axes.flat[len(fits) :]
        for ax in spare:
            ax.set_axis_off()
        if len(spare):
            spare[0].legend(handles, labels, loc="center left")
            for ax in axes.flat[len(fits) - columns : (rows - 1) * columns]:
                ax.tick_params(labelbottom=True)
        else:
            fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))

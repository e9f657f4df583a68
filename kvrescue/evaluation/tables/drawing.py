"""What all figures share: colours, sizes, panels, whiskers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvrescue.evaluation.tables.table import Estimate
from kvrescue.registry import missing_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLACK",
    "BLUE",
    "FORMATS",
    "GREEN",
    "GREY",
    "ORANGE",
    "RC",
    "SKY",
    "columns_of",
    "legend",
    "letter",
    "panels_for",
    "percent",
    "require_matplotlib",
    "save",
]

FORMATS: Final = ("png", "svg")

BLACK, ORANGE, BLUE, GREEN = "#000000", "#D55E00", "#0072B2", "#009E73"
GREY, SKY = "#BBBBBB", "#56B4E9"

RC: Final[Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "grid.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "kvrescue",
    "svg.fonttype": "path",
    "savefig.dpi": 300,
}
_COLUMN, _PAGE, _HEIGHT, _LEGEND = 3.4, 7.0, 2.1, 0.35
"""Inches: the widths of a column and of a page, a panel's height, and room for a legend."""
_PER_ROW: Final[Mapping[int, int]] = {1: 1, 2: 2, 4: 2}
"""Panels side by side, by their number; else 3."""


def require_matplotlib() -> None:
    """Raises DependencyError when it is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_package("a report's figures", error) from error


def columns_of(count: int) -> int:
    """Panels side by side."""
    return _PER_ROW.get(count, 3)


def panels_for(count: int, *, share_y: bool = True) -> tuple[Figure, list[Axes]]:
    """So many panels, in one row or several, below room for a legend."""
    from matplotlib.figure import Figure

    columns = columns_of(count)
    rows = -(-count // columns)
    size = (_COLUMN if columns == 1 else _PAGE, rows * _HEIGHT + _LEGEND)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, sharey=share_y, squeeze=False)
    found = list(axes.flat)
    for spare in found[count:]:
        spare.set_axis_off()
    for place in range(count):
        found[place].grid(axis="y")
    return figure, found[:count]


def legend(figure: Figure, panel: Axes, columns: int = 4) -> None:
    """Above all panels, from the labels of one."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, handlelength=2.4)


def letter(panels: Sequence[Axes], titles: Iterable[str]) -> None:
    """Titles, lettered where there are several panels."""
    for letter, panel, title in zip("abcdefghijklmnopqrstuvwxyz", panels, titles, strict=False):
        panel.set_title(f"({letter}) {title}" if len(panels) > 1 else title)


def percent(estimates: Iterable[Estimate]) -> tuple[list[float], list[list[float]]]:
    """Values in per cent, and their whiskers down and up."""
    values, down, up = [], [], []
    for found in estimates:
        low = found.value if found.low is None else found.low
        high = found.value if found.high is None else found.high
        values.append(100 * found.value)
        down.append(100 * (found.value - low))
        up.append(100 * (high - found.value))
    return values, [down, up]


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, ...]:
    """Write a figure in every format. Within `rc_context(RC)` the bytes depend on data alone."""
    files = []
    for form in FORMATS:
        file = folder / f"{name}.{form}"
        # No date and no version: the file is a function of the data alone.
        told = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        figure.savefig(file, format=form, metadata=told)
        files.append(file)
    return tuple(files)

"""Histograms of what detectors measure, with thresholds (Figure 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvrescue.evaluation.tables.drawing import BLACK, GREEN, ORANGE, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["KNOWN_SOURCES", "Mark", "histogram"]

_SOURCES: Final = ((ORANGE, "-"), (SKY, "-."))
"""Of the evicted base, at its smallest and its largest traced budget."""
KNOWN_SOURCES: Final = {"full-KV": (BLACK, "--"), "helper": (GREEN, ":")}
"""Labels with a style of their own; any other is the evicted base at a budget."""
_BINS: Final = 30


@dataclass(frozen=True, slots=True)
class Mark:
    """A threshold in a histogram."""

    threshold: float
    symbol: str
    color: str = "#666666"
    linestyle: str = "-."


def histogram(panel: Axes, found: Mapping[str, Sequence[float]], marks: Sequence[Mark]) -> None:
    """Draw the values of each source as per cent of its own, and the thresholds as lines."""
    everything = [value for values in found.values() for value in values]
    everything += [mark.threshold for mark in marks]
    low, high = min(everything), max(everything)
    margin = 0.02 * (high - low) or 0.5
    low, high = low - margin, high + margin
    edges = [low + (high - low) * place / _BINS for place in range(_BINS + 1)]
    others = iter(_SOURCES)
    for label, values in found.items():
        colour, line = KNOWN_SOURCES.get(label) or next(others)
        heights = _heights(values, edges)
        panel.stairs(heights, edges, color=colour, linestyle=line, linewidth=1.2)
        panel.plot([], [], color=colour, linestyle=line, linewidth=1.2, label=label)
    for row, mark in enumerate(marks):
        panel.axvline(mark.threshold, color=mark.color, linewidth=0.9, linestyle=mark.linestyle)
        panel.annotate(
            f"{mark.symbol} = {mark.threshold:g}",
            (mark.threshold, 0.97 - 0.09 * row),
            xycoords=panel.get_xaxis_transform(),
            xytext=(2, 0),
            textcoords="offset points",
            fontsize=7,
            va="top",
        )


def _heights(values: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Per cent of the values in each bin; no value is on an outer edge."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[bisect_right(edges, value) - 1] += 1
    return [100 * count / len(values) if values else 0.0 for count in counts]

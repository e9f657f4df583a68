"""Figures of a report, drawn with matplotlib's objects: the same data gives the same bytes.

Nothing of pyplot is used, so nothing is shared with a program that draws figures of its own.
Colours are Okabe and Ito's, told apart by colour-blind readers; methods differ in marker and line
as well. Whiskers and bands are 95 % intervals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kvrescue.evaluation.methods import Method
from kvrescue.evaluation.tables.accuracy import over_budgets, over_n
from kvrescue.evaluation.tables.cells import LABELS, Cells
from kvrescue.evaluation.tables.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RC,
    SKY,
    columns_of,
    legend,
    letter,
    panels_for,
    percent,
    require_matplotlib,
)
from kvrescue.evaluation.tables.signals import Signals
from kvrescue.evaluation.tables.table import Estimate, Table, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "draw", "write_figures"]

FORMATS: Final = ("png", "svg")

_STYLES: Final[Mapping[Method, Mapping[str, Any]]] = {
    "kv_rescue": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "best_of_n": {"color": ORANGE, "marker": "s", "linestyle": "-"},
    "full_kv": {"color": BLACK, "marker": "", "linestyle": "--"},
    "helper": {"color": GREEN, "marker": "", "linestyle": ":"},
}
Point: TypeAlias = tuple[float, Estimate]


def write_figures(
    cells: Cells, tables: Mapping[str, Table], signals: Signals | None, folder: Path
) -> dict[str, tuple[Path, ...]]:
    """Draw what there is data for, as PNG and SVG.

    Args:
        cells: of the run.
        tables: by name; `oracle` and `sources` are shown.
        signals: of the run's traces.
        folder: where to; it exists.

    Returns:
        The files, by name of the figure.
    """
    require_matplotlib()
    import matplotlib

    written = {}
    with matplotlib.rc_context(RC):
        for name, figure in draw(cells, tables, signals):
            files = []
            for form in FORMATS:
                file = folder / f"{name}.{form}"
                # No date and no version: the file is a function of the data alone.
                told = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
                figure.savefig(file, format=form, metadata=told)
                files.append(file)
            written[name] = tuple(files)
    return written


def draw(
    cells: Cells, tables: Mapping[str, Table], signals: Signals | None
) -> Iterator[tuple[str, Figure]]:
    """Every figure that there is data for, with its name."""
    makers: dict[str, Callable[[], Figure | None]] = {
        "figure_1a": lambda: _oracle(tables["oracle"]),
        "figure_1b": lambda: _accuracy_over_n(cells),
        "figure_3": lambda: _signals(signals),
        "figure_5": lambda: _accuracy_over_budgets(cells),
        "figure_6": lambda: _sources(tables["sources"]),
    }
    for name, make in makers.items():
        figure = make()
        if figure is not None:
            yield name, figure


# -- accuracy (Figures 1b and 5) --------------------------------------------------------------


def _accuracy_over_budgets(cells: Cells) -> Figure | None:
    evicted: tuple[Method, ...] = ("best_of_n", "kv_rescue")
    ns = [n for n in cells.ns if any(list(over_budgets(cells, method, n)) for method in evicted)]
    if not ns:
        return None
    figure, panels = panels_for(len(ns))
    for panel, n in zip(panels, ns, strict=True):
        for method in ("full_kv", "helper"):
            cell = cells.reference(method, n)
            if cell is not None and cell.accuracy is not None:
                _level(panel, cell.accuracy, method)
        for method in evicted:
            _curve(panel, list(over_budgets(cells, method, n)), method)
        _log_axis(panel, cells.budgets, "KV budget B (entries)")
    letter(panels, (f"N = {n}" for n in ns))
    _accuracy_axis(panels)
    legend(figure, panels[0])
    return figure


def _accuracy_over_n(cells: Cells) -> Figure | None:
    evicted: tuple[Method, ...] = ("best_of_n", "kv_rescue")
    curves = {
        budget: {method: list(over_n(cells, method, budget)) for method in evicted}
        for budget in cells.budgets
    }
    curves = {budget: found for budget, found in curves.items() if any(found.values())}
    if not curves:
        return None
    figure, panels = panels_for(len(curves))
    every = sorted({n for found in curves.values() for points in found.values() for n, _ in points})
    for panel, found in zip(panels, curves.values(), strict=True):
        for method in ("full_kv", "helper"):
            points = [point for point in over_n(cells, method, None) if point[0] in every]
            if len(points) > 1:
                _curve(panel, points, method)
            elif points:
                _level(panel, points[0][1], method)
        for method, points in found.items():
            _curve(panel, points, method)
        _log_axis(panel, every, "Candidates N of each proposer")
    letter(panels, (f"budget {budget}" for budget in curves))
    _accuracy_axis(panels)
    legend(figure, panels[0])
    return figure


def _curve(panel: Axes, points: Sequence[Point], method: Method) -> None:
    if not points:
        return
    values, whiskers = percent(estimate for _, estimate in points)
    places = [place for place, _ in points]
    style = {"label": LABELS[method], "elinewidth": 0.8, **_STYLES[method]}
    panel.errorbar(places, values, yerr=whiskers, **style)


def _level(panel: Axes, accuracy: Estimate, method: Method) -> None:
    style = {key: value for key, value in _STYLES[method].items() if key != "marker"}
    panel.axhline(100 * accuracy.value, label=LABELS[method], **style)
    if accuracy.low is not None and accuracy.high is not None:
        colour = style["color"]
        panel.axhspan(100 * accuracy.low, 100 * accuracy.high, color=colour, alpha=0.10, lw=0)


def _log_axis(panel: Axes, ticks: Sequence[int], label: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(ticks), labels=[str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlim(min(ticks) / 1.25, max(ticks) * 1.25)
    panel.set_xlabel(label)


def _accuracy_axis(panels: Sequence[Axes]) -> None:
    columns = columns_of(len(panels))
    for place, panel in enumerate(panels):
        panel.set_ylim(-3, 103)
        if place % columns == 0:
            panel.set_ylabel("Accuracy (%)")


# -- oracle (Figure 1a) -----------------------------------------------------------------------

_OUTCOMES: Final = (
    ("both", "both right", GREY, ""),
    ("evicted_only", "only evicted base right", ORANGE, "///"),
    ("helper_only", "only helper right", GREEN, "\\\\\\"),
)


def _oracle(table: Table) -> Figure | None:
    rows = [row for row in table.where() if isinstance(row["oracle"], Estimate)]
    if not rows:
        return None
    figure, (panel,) = panels_for(1)
    places = range(len(rows))
    bottom = [0.0] * len(rows)
    for name, label, colour, hatch in _OUTCOMES:
        heights, _ = percent(_estimates(row[name] for row in rows))
        panel.bar(
            places, heights, 0.6, bottom, label=label, color=colour, hatch=hatch, ec="white", lw=0.5
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    tops, whiskers = percent(_estimates(row["oracle"] for row in rows))
    panel.errorbar(places, tops, yerr=whiskers, fmt="none", ecolor="#444444", elinewidth=0.8)
    for place, row in zip(places, rows, strict=True):
        full, recovery = row["full"], row["recovery"]
        if isinstance(full, Estimate):
            shown = "_full-KV" if place else "full-KV"  # matplotlib hides the former
            (level,), whiskers = percent([full])
            panel.hlines(level, place - 0.4, place + 0.4, BLACK, "--", label=shown)
            panel.errorbar(place + 0.36, level, whiskers, fmt="none", ecolor=BLACK, elinewidth=0.8)
        if isinstance(recovery, Estimate):
            text = f"{100 * recovery.value:.0f} %"
            panel.annotate(text, (place, 107), ha="center", va="center", fontsize=7)
    panel.set_xticks(list(places), labels=[str(row["budget"]) for row in rows])
    panel.set_xlabel("KV budget B (entries)")
    panel.set_title("above: loss recovered by the oracle")
    panel.set_ylabel("Problems (%)")
    panel.set_ylim(0, 112)
    panel.set_yticks(range(0, 101, 20))
    legend(figure, panel, 2)
    return figure


def _estimates(values: Iterable[Value]) -> list[Estimate]:
    return [value if isinstance(value, Estimate) else Estimate(0.0) for value in values]


# -- sources (Figure 6) -----------------------------------------------------------------------


def _sources(table: Table) -> Figure | None:
    rows = [row for row in table.where() if isinstance(row["helper"], Estimate)]
    if not rows:
        return None
    largest = max(int(str(row["n"])) for row in rows)
    by_n = _most_ns(rows)
    views = [
        (by_n, "n", "Candidates N of each proposer", f"budget {by_n[0]['budget']}"),
        (
            [row for row in rows if row["n"] == largest],
            "budget",
            "KV budget B (entries)",
            f"N = {largest}",
        ),
    ]
    figure, panels = panels_for(2)
    for panel, (shown, name, label, _) in zip(panels, views, strict=True):
        places = range(len(shown))
        base, _ = percent(_estimates(row["base"] for row in shown))
        helper, whiskers = percent(_estimates(row["helper"] for row in shown))
        panel.bar(places, helper, 0.6, color=GREEN, label="helper", ec="white", hatch="\\\\\\")
        panel.bar(places, base, 0.6, helper, color=BLUE, label="evicted base", ec="white")
        panel.errorbar(places, helper, yerr=whiskers, fmt="none", ecolor="black", elinewidth=0.8)
        for place, height in zip(places, helper, strict=True):
            text = f"{height:.0f}"
            panel.annotate(text, (place, 104), ha="center", va="center", fontsize=7)
        panel.set_xticks(list(places), labels=[str(row[name]) for row in shown])
        panel.set_xlabel(label)
        panel.set_ylim(0, 109)
        panel.set_yticks(range(0, 101, 20))
    panels[0].set_ylabel("Committed steps (%)")
    letter(panels, (f"{title}; above: helper's %" for *_, title in views))
    legend(figure, panels[0])
    return figure


def _most_ns(rows: Sequence[Mapping[str, Value]]) -> list[Mapping[str, Value]]:
    """Rows of the budget that was run with most Ns; of several, the smallest."""
    budgets = sorted({int(str(row["budget"])) for row in rows})
    groups = [[row for row in rows if row["budget"] == budget] for budget in budgets]
    return max(groups, key=len)


# -- signals (Figure 3) -----------------------------------------------------------------------

_SOURCES: Final = ((ORANGE, "-"), (SKY, "-."))
"""Of the evicted base, at its smallest and its largest traced budget."""
_KNOWN_SOURCES: Final = {"full-KV": (BLACK, "--"), "helper": (GREEN, ":")}
_BINS: Final = 30


def _signals(signals: Signals | None) -> Figure | None:
    if signals is None or not signals.sources:
        return None
    evicted = [source for source in signals.sources if source.label not in _KNOWN_SOURCES]
    shown = [source for source in signals.sources if source not in evicted[1:-1]]
    views = []
    if signals.entropy is not None:
        label = f"Largest mean entropy over {signals.entropy.window} tokens (nats)"
        found = {source.label: _known(source.entropies) for source in shown}
        views.append((found, signals.entropy.threshold, label, r"$\tau_{\mathrm{ent}}$"))
    if signals.gzip is not None:
        label = f"Least gzip ratio over {signals.gzip.window_chars} characters (bytes/bytes)"
        found = {source.label: _known(source.ratios) for source in shown}
        views.append((found, signals.gzip.threshold, label, r"$\tau_{\mathrm{cmp}}$"))
    views = [view for view in views if any(view[0].values())]
    if not views:
        return None
    figure, panels = panels_for(len(views), share_y=False)
    for panel, (found, threshold, label, symbol) in zip(panels, views, strict=True):
        _histogram(panel, found, threshold, symbol)
        panel.set_xlabel(label)
        panel.set_ylabel("Candidates (%)")
    legend(figure, panels[0])
    return figure


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _histogram(
    panel: Axes, found: Mapping[str, Sequence[float]], threshold: float, symbol: str
) -> None:
    everything = [value for values in found.values() for value in values] + [threshold]
    low, high = min(everything), max(everything)
    margin = 0.02 * (high - low) or 0.5
    low, high = low - margin, high + margin
    edges = [low + (high - low) * place / _BINS for place in range(_BINS + 1)]
    others = iter(_SOURCES)
    for label, values in found.items():
        colour, line = _KNOWN_SOURCES.get(label) or next(others)
        heights = _heights(values, edges)
        panel.stairs(heights, edges, color=colour, linestyle=line, linewidth=1.2)
        panel.plot([], [], color=colour, linestyle=line, linewidth=1.2, label=label)
    panel.axvline(threshold, color="#666666", linewidth=0.9, linestyle="-.")
    panel.annotate(
        f"{symbol} = {threshold:g}",
        (threshold, 0.97),
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

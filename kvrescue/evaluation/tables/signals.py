"""Figure 3: entropy and gzip ratio of candidates, with the detectors' thresholds, from traces.

Candidates of methods without detectors are read to their end, so these distributions are those
that a threshold has to divide. Per candidate: the largest mean entropy over the detector's window,
at the positions that can get a verdict, and the least gzip ratio of a full window. A candidate too
short for either has none and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvrescue.config import RescueConfig
from kvrescue.detectors.entropy import EntropyDetector
from kvrescue.detectors.gzip import GzipDetector, gzip_ratio
from kvrescue.evaluation.methods import BASE, HELPER, Method
from kvrescue.evaluation.tables.cells import LABELS, Cells
from kvrescue.evaluation.tables.table import Column, Table, Value
from kvrescue.evaluation.tables.traced import Traced
from kvrescue.types import Candidate

__all__ = ["Signals", "Source", "largest_entropy", "least_ratio", "signal_table", "signals_of"]

_UNSCREENED: Final[tuple[Method, ...]] = ("best_of_n", "interleaved")


@dataclass(frozen=True)
class Source:
    """Candidates of one model, over all traced problems."""

    label: str
    entropies: tuple[float | None, ...]
    """Largest mean entropy of each, in nats."""
    ratios: tuple[float | None, ...]
    """Least gzip ratio of each."""


@dataclass(frozen=True)
class Signals:
    """What Figure 3 shows."""

    entropy: EntropyDetector | None
    """As KV-Rescue uses it in this run."""
    gzip: GzipDetector | None
    sources: tuple[Source, ...]
    note: str = ""
    """Of traces that could not be read."""


def signals_of(cells: Cells, traced: Traced | None = None) -> Signals | None:
    """Read the traces; None without detectors or without traced candidates.

    Args:
        cells: of a run.
        traced: reads its traces (default: one of its own).
    """
    rescue = next((cell for cell in cells if cell.method == "kv_rescue"), None)
    if rescue is None:
        return None
    entropy, gzip = _detectors(rescue.config)
    if entropy is None and gzip is None:
        return None
    wanted: list[tuple[str, Method, int | None, str]] = [
        (f"evicted base, B = {budget}", method, budget, BASE)
        for budget in cells.budgets
        for method in _UNSCREENED
    ]
    wanted += [(LABELS["full_kv"], "full_kv", None, BASE), ("helper", "helper", None, HELPER)]
    traced = traced or Traced(cells)
    found: dict[str, list[Candidate]] = {}
    for label, method, budget, proposer in wanted:
        candidates = found.setdefault(label, [])
        if not candidates:  # the first method that was traced is enough
            candidates += traced.candidates(method, budget, proposer)
    sources = tuple(
        Source(
            label,
            tuple(None if entropy is None else largest_entropy(c, entropy) for c in candidates),
            tuple(None if gzip is None else least_ratio(c.text, gzip) for c in candidates),
        )
        for label, candidates in found.items()
        if candidates
    )
    note = traced.note
    return Signals(entropy, gzip, sources, note) if sources or note else None


def _detectors(config: RescueConfig) -> tuple[EntropyDetector | None, GzipDetector | None]:
    detectors = config.proposers[BASE].detectors
    entropy = next((d for d in detectors if isinstance(d, EntropyDetector)), None)
    return entropy, next((d for d in detectors if isinstance(d, GzipDetector)), None)


def largest_entropy(candidate: Candidate, detector: EntropyDetector) -> float | None:
    """The largest mean that the detector would compare with its threshold, in nats."""
    entropies, window = candidate.entropies, detector.window
    means = [
        math.fsum(entropies[end - window : end]) / window
        for end in range(detector.first_position, len(entropies) + 1)
    ]
    return max(filter(math.isfinite, means), default=None)


def least_ratio(text: str, detector: GzipDetector) -> float | None:
    """The least ratio that the detector would compare with its threshold."""
    width = detector.window_chars
    ends = range(width, len(text) + 1, detector.stride_chars)
    return min((gzip_ratio(text[end - width : end]) for end in ends), default=None)


def signal_table(signals: Signals | None) -> Table:
    """How many candidates lie beyond the thresholds, by source."""
    rows: list[tuple[Value, ...]] = []
    for source in () if signals is None else signals.sources:
        for name, values, threshold, high in _panels(signals, source):
            known = sorted(value for value in values if value is not None)
            beyond = sum(v > threshold if high else v < threshold for v in known)
            rows.append(
                (
                    source.label,
                    name,
                    len(values),
                    len(values) - len(known),
                    known[len(known) // 2] if known else None,
                    threshold,
                    beyond / len(known) if known else None,
                )
            )
    return Table(
        name="signals",
        title="Degeneration signals of candidates (Figure 3)",
        columns=(
            Column("source", "Source"),
            Column("signal", "Signal"),
            Column("candidates", "Candidates", "count"),
            Column("too_short", "Too short", "count"),
            Column("median", "Median", "ratio"),
            Column("threshold", "Threshold", "ratio"),
            Column("beyond", "Beyond it (%)", "share"),
        ),
        rows=tuple(rows),
        note=(
            "Candidates of the traced problems, drawn without detectors. Per candidate the largest "
            "mean entropy (nats) and the least gzip ratio (bytes over bytes) over the detector's "
            "windows; too short: no window fits. Shares are of those with a window. No rows: no "
            "traces were kept." + ("" if signals is None else signals.note)
        ),
        figures=("figure_3",),
    )


def _panels(
    signals: Signals | None, source: Source
) -> Iterator[tuple[str, tuple[float | None, ...], float, bool]]:
    if signals is not None and signals.entropy is not None:
        yield "entropy", source.entropies, signals.entropy.threshold, True
    if signals is not None and signals.gzip is not None:
        yield "gzip ratio", source.ratios, signals.gzip.threshold, False

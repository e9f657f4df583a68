"""Early exits by detector: which of them ended KV-Rescue's base candidates, and how soon."""

from __future__ import annotations

import statistics

from kvrescue.evaluation.methods import BASE
from kvrescue.evaluation.tables.cells import Cells
from kvrescue.evaluation.tables.table import Column, Table, Value
from kvrescue.evaluation.tables.traced import Traced

__all__ = ["exit_table"]


def exit_table(cells: Cells, traced: Traced | None = None) -> Table:
    """Aborted candidates of the traced problems, by budget, N and detector.

    Args:
        cells: of a run.
        traced: reads its traces (default: one of its own).
    """
    traced = traced or Traced(cells)
    rows: list[tuple[Value, ...]] = []
    for cell in cells:
        if cell.method != "kv_rescue":
            continue
        drawn = list(traced.candidates("kv_rescue", cell.budget, BASE, cell.n))
        if not drawn:
            continue
        verdicts = [candidate.verdict for candidate in drawn if candidate.verdict is not None]
        for kind in dict.fromkeys(part.kind for part in cell.config.proposers[BASE].detectors):
            found = [verdict.position for verdict in verdicts if verdict.detector == kind]
            soon = statistics.median(found) if found else None
            rows.append(
                (cell.budget, cell.n, kind, len(drawn), len(found), len(found) / len(drawn), soon)
            )
    return Table(
        name="exits",
        title="Early exits by detector",
        columns=(
            Column("budget", "Budget", "count"),
            Column("n", "N", "count"),
            Column("detector", "Detector", "code"),
            Column("candidates", "Base candidates", "count"),
            Column("ended", "Ended", "count"),
            Column("share", "Ended (%)", "share"),
            Column("tokens", "Tokens read (median)", "ratio"),
        ),
        rows=tuple(rows),
        note=(
            "KV-Rescue's base candidates in the traced problems. A candidate is ended by the "
            "detector that fires first; tokens read: until then. No rows: no traces were kept."
            + traced.note
        ),
    )

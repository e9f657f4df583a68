"""Figure 6: who wrote the committed steps."""

from __future__ import annotations

from kvrescue.evaluation.methods import BASE, HELPER
from kvrescue.evaluation.tables.cells import Cell, Cells, Measure
from kvrescue.evaluation.tables.table import INTERVAL, Column, Estimate, Table, Value
from kvrescue.evaluation.tables.tokens import steps

__all__ = ["helper_share", "source_table", "written_by"]


def written_by(name: str) -> Measure:
    """Committed steps that a proposer wrote."""
    return lambda record: record.sources.count(name)


def _share(name: str, cell: Cell) -> Estimate | None:
    return cell.quotient(written_by(name), steps)


def helper_share(cells: Cells, budget: int, n: int) -> Estimate | None:
    """Share of KV-Rescue's committed steps that the helper wrote."""
    cell = cells.get("kv_rescue", budget, n)
    return None if cell is None else _share(HELPER, cell)


def source_table(cells: Cells) -> Table:
    """Shares of KV-Rescue's committed steps."""
    rows: list[tuple[Value, ...]] = []
    for n in cells.ns:
        for budget in cells.budgets:
            cell = cells.get("kv_rescue", budget, n)
            if cell is None:
                rows.append((n, budget, None, None, None))
                continue
            shares = (_share(BASE, cell), _share(HELPER, cell))
            rows.append((n, budget, *shares, cell.mean(steps)))
    return Table(
        name="sources",
        title="Committed steps by source (Figure 6)",
        columns=(
            Column("n", "N", "count"),
            Column("budget", "Budget", "count"),
            Column("base", "Evicted base (%)", "share", INTERVAL),
            Column("helper", "Helper (%)", "share", INTERVAL),
            Column("steps", "Steps per problem", "mean", INTERVAL),
        ),
        rows=tuple(rows),
        note=(
            "Shares of all committed steps of KV-Rescue, with 95 % intervals (bootstrap over "
            "problems)."
        ),
        figures=("figure_6",),
    )

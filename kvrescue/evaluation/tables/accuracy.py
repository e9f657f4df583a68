"""Table 5 and Figures 1b and 5: accuracy by method, budget and N; and the recovery they mean."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final

from kvrescue.evaluation.methods import Method
from kvrescue.evaluation.statistics import LEAST_GAP, recovery
from kvrescue.evaluation.tables.cells import LABELS, Cell, Cells, Measure, Sums, correct, paired
from kvrescue.evaluation.tables.table import INTERVAL, SPREAD, Column, Estimate, Table, Value

__all__ = ["FULL", "accuracy_table", "budget_of", "recovery_of", "recovery_table"]

FULL: Final = "full"
"""Stands for the budget of methods that evict nothing."""

_ORDER: Final[tuple[Method, ...]] = (
    "best_of_n",
    "interleaved",
    "kv_rescue",
    "full_kv",
    "helper",
)


def budget_of(cell: Cell) -> int | str:
    """As tables show it."""
    return FULL if cell.budget is None else cell.budget


def accuracy_table(cells: Cells) -> Table:
    """Accuracy of every cell, references last, as in Table 5."""
    rows: list[tuple[Value, ...]] = []
    for cell in sorted(cells, key=lambda c: (c.n, _ORDER.index(c.method), c.budget or 0)):
        rows.append(
            (
                cell.n,
                LABELS[cell.method],
                budget_of(cell),
                cell.accuracy,
                len(cell.seeds),
                len(cell.rows),
                cell.planned,
                cell.left_out,
            )
        )
    return Table(
        name="accuracy",
        title="Accuracy by budget (Table 5)",
        columns=(
            Column("n", "N", "count"),
            Column("method", "Method"),
            Column("budget", "Budget", "count"),
            Column("accuracy", "Accuracy (%)", "share", SPREAD),
            Column("seeds", "Seeds", "count"),
            Column("rows", "Rows", "count"),
            Column("planned", "Planned", "count"),
            Column("degraded", "Degraded", "count"),
        ),
        rows=tuple(rows),
        note=(
            "Mean ± standard deviation over seeds (where there are several) and 95 % interval "
            "(Wilson, the seeds of a problem counted as one cluster). N: candidates of each "
            "proposer in a step; KV-Rescue draws N + N. Rows: problems times seeds that count; "
            "degraded rows do not."
        ),
        figures=("figure_5", "figure_1b"),
    )


def recovery_of(cells: Cells, method: Method, budget: int, n: int) -> Estimate | None:
    """(A - A_evict) / (A_full - A_evict), over the problems that all three have solved.

    None where full KV and evicted are less than `LEAST_GAP` points apart.
    """
    found = paired(
        [
            (cells.reference("full_kv", n), correct),
            (cells.get("best_of_n", budget, n), correct),
            (cells.get(method, budget, n), correct),
        ],
        lambda sums: recovery(*sums),
    )
    return found if has_gap(cells, budget, n) else None


def gap_of(cells: Cells, budget: int, n: int) -> Estimate | None:
    """A_full - A_evict."""

    def lost(sums: Sums) -> float:
        return sums[0] - sums[1]

    full, evicted = cells.reference("full_kv", n), cells.get("best_of_n", budget, n)
    return paired([(full, correct), (evicted, correct)], lost)


def has_gap(cells: Cells, budget: int, n: int) -> bool:
    """Whether eviction lost enough to speak of a share of it."""
    gap = gap_of(cells, budget, n)
    return gap is not None and 100 * gap.value >= LEAST_GAP - 1e-9


def recovery_table(cells: Cells) -> Table:
    """Recovery of every cell, and its mean over N at each budget."""
    rows: list[tuple[Value, ...]] = []
    for budget in cells.budgets:
        for n in cells.ns:
            full = cells.reference("full_kv", n)
            rows.append(
                (
                    budget,
                    n,
                    gap_of(cells, budget, n),
                    None if full is None else full.n,
                    recovery_of(cells, "interleaved", budget, n),
                    recovery_of(cells, "kv_rescue", budget, n),
                )
            )
        if len(cells.ns) > 1:
            rows.append((budget, "mean", None, None, None, mean_recovery(cells, budget)))
    return Table(
        name="recovery",
        title="Recovery",
        columns=(
            Column("budget", "Budget", "count"),
            Column("n", "N", "count"),
            Column("gap", "Lost to eviction (points)", "share", INTERVAL),
            Column("full_n", "N of full-KV", "count"),
            Column("interleaved", "+ interleaving", "ratio", INTERVAL),
            Column("recovery", "KV-Rescue", "ratio", INTERVAL),
        ),
        rows=tuple(rows),
        note=(
            "(A - A_evict) / (A_full - A_evict), all three at the same N (full-KV with the next "
            "smaller N where it was not run), over the problems that all have solved; 95 % "
            f"intervals by bootstrap over problems. - where less than {LEAST_GAP} points were "
            "lost: a quotient of two small differences says nothing. The mean is over the N that "
            "have a recovery."
        ),
    )


def mean_recovery(cells: Cells, budget: int) -> Estimate | None:
    """KV-Rescue's, over the N that have one."""
    ns = [n for n in cells.ns if recovery_of(cells, "kv_rescue", budget, n) is not None]
    columns: list[tuple[Cell | None, Measure]] = []
    for n in ns:
        compared = (
            cells.reference("full_kv", n),
            cells.get("best_of_n", budget, n),
            cells.get("kv_rescue", budget, n),
        )
        columns += [(cell, correct) for cell in compared]

    def mean(sums: Sums) -> float | None:
        found = [recovery(*sums[place : place + 3]) for place in range(0, len(sums), 3)]
        known = [value for value in found if value is not None]
        return statistics.fmean(known) if len(known) == len(found) else None

    return paired(columns, mean)


def over_budgets(cells: Cells, method: Method, n: int) -> Iterator[tuple[int, Estimate]]:
    """Budgets and accuracies of a method, from the smallest budget."""
    for budget in cells.budgets:
        cell = cells.get(method, budget, n)
        if cell is not None and cell.accuracy is not None:
            yield budget, cell.accuracy


def over_n(cells: Cells, method: Method, budget: int | None) -> Iterator[tuple[int, Estimate]]:
    """Ns and accuracies of a method, from the smallest N."""
    for n in sorted({cell.n for cell in cells}):
        cell = cells.get(method, budget, n)
        if cell is not None and cell.accuracy is not None:
            yield n, cell.accuracy

"""Figure 1a: an oracle's choice between the answers of the evicted base and of the helper."""

from __future__ import annotations

import dataclasses

from kvrescue.evaluation.statistics import LEAST_GAP, recovery
from kvrescue.evaluation.tables.accuracy import has_gap
from kvrescue.evaluation.tables.cells import Cell, Cells, Measure, correct, paired
from kvrescue.evaluation.tables.table import INTERVAL, Column, Estimate, Table, Value

__all__ = ["oracle_n", "oracle_table"]


def oracle_n(cells: Cells) -> int | None:
    """The smallest N at which both models stand alone: 1, unless it was not run."""
    alone = [{cell.n for cell in cells if cell.method == m} for m in ("best_of_n", "helper")]
    return min(set.intersection(*alone), default=None)


def oracle_table(cells: Cells) -> Table:
    """Who is right of the two, and what the better choice would recover, by budget."""
    rows: list[tuple[Value, ...]] = []
    n = oracle_n(cells)
    if n is not None:
        rows = [(budget, n, *_row(cells, budget, n)) for budget in cells.budgets]
    return Table(
        name="oracle",
        title="Oracle choice between evicted base and helper (Figure 1a)",
        columns=(
            Column("budget", "Budget", "count"),
            Column("n", "N", "count"),
            Column("pairs", "Pairs", "count"),
            Column("both", "Both right (%)", "share", INTERVAL),
            Column("evicted_only", "Only evicted right (%)", "share", INTERVAL),
            Column("helper_only", "Only helper right (%)", "share", INTERVAL),
            Column("neither", "Neither (%)", "share", INTERVAL),
            Column("oracle", "Oracle (%)", "share", INTERVAL),
            Column("full", "Full-KV (%)", "share", INTERVAL),
            Column("recovery", "Oracle's recovery", "ratio", INTERVAL),
        ),
        rows=tuple(rows),
        note=(
            "Answers paired by problem and seed; the oracle is right where either is. Full-KV over "
            "the same problems. Recovery: (oracle - evicted) / (full-KV - evicted), - where less "
            f"than {LEAST_GAP} points were lost. 95 % intervals: Wilson over problems for shares, "
            "bootstrap for the recovery."
        ),
        figures=("figure_1a",),
    )


def _row(cells: Cells, budget: int, n: int) -> list[Value]:
    evicted, helper = cells.get("best_of_n", budget, n), cells.get("helper", None, n)
    full = cells.reference("full_kv", n)
    if evicted is None or helper is None:
        return [None] * 8
    other = {
        (seed, record.problem): record.correct
        for seed, records in helper.seeds.items()
        for record in records
    }
    pairs = {
        id(record): (record.correct, other[seed, record.problem])
        for seed, records in evicted.seeds.items()
        for record in records
        if (seed, record.problem) in other
    }
    both = _only(evicted, set(pairs))

    def among(*wanted: tuple[bool, bool]) -> Measure:
        return lambda record: float(pairs[id(record)] in wanted)

    outcomes = [(True, True), (True, False), (False, True), (False, False)]
    either = among(*outcomes[:3])
    shares = [None if both is None else both.share(among(outcome)) for outcome in outcomes]
    oracle = None if both is None else both.share(either)

    recovered = None
    if has_gap(cells, budget, n):
        compared = [(both, either), (both, correct), (full, correct)]
        recovered = paired(compared, lambda sums: recovery(*reversed(sums)))
    return [len(pairs), *shares, oracle, _common(full, both), recovered]


def _only(cell: Cell, wanted: set[int]) -> Cell | None:
    seeds = {
        seed: tuple(record for record in records if id(record) in wanted)
        for seed, records in cell.seeds.items()
    }
    return dataclasses.replace(cell, seeds=seeds) if wanted else None


def _common(full: Cell | None, both: Cell | None) -> Estimate | None:
    """Full-KV's accuracy over the problems of the pairs."""
    if full is None or both is None:
        return None
    problems = {record.problem for record in both.rows}
    common = _only(full, {id(record) for record in full.rows if record.problem in problems})
    return None if common is None else common.accuracy

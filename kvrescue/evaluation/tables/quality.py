"""What stands behind the numbers: rows, degraded rows, and where grading rules disagree."""

from __future__ import annotations

from collections import Counter

from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.tables.accuracy import budget_of
from kvrescue.evaluation.tables.cells import LABELS, Cells, Measure
from kvrescue.evaluation.tables.table import INTERVAL, SPREAD, Column, Table, Value

__all__ = ["degraded_table", "disagreement_table", "failure_table", "grading_table"]

_CELL = (
    Column("n", "N", "count"),
    Column("method", "Method"),
    Column("budget", "Budget", "count"),
)


def degraded_table(cells: Cells) -> Table:
    """Cells in which a scorer or a proposer failed, with and without the rows it did in."""
    everything = Cells.of(cells.run, cells.composition or None, degraded=True)
    rows: list[tuple[Value, ...]] = []
    for cell in everything:
        where = Counter(
            place
            for record in cell.rows
            for place in sorted({degradation.where for degradation in record.degradations})
        )
        if not where:
            continue
        without = cells.by_key.get((cell.method, cell.budget, cell.n))
        rows.append(
            (
                cell.n,
                LABELS[cell.method],
                budget_of(cell),
                len(cell.rows),
                sum(record.degraded for record in cell.rows),
                ", ".join(f"{place}: {count}" for place, count in sorted(where.items())),
                cell.accuracy,
                None if without is None else without.accuracy,
            )
        )
    return Table(
        name="degraded",
        title="Degraded rows",
        columns=(
            *_CELL,
            Column("rows", "Rows", "count"),
            Column("degraded", "Degraded", "count"),
            Column("where", "Where"),
            Column("with", "Accuracy with them (%)", "share", SPREAD),
            Column("without", "Accuracy without (%)", "share", SPREAD),
        ),
        rows=tuple(rows),
        note=(
            "Rows in which a scorer or a proposer failed and the run went on. They are left out of "
            "all other tables, as in the paper. No rows here: nothing failed in this way."
        ),
    )


def rules_of(cells: Cells) -> list[str]:
    """Names of the grading rules that judged this run."""
    return sorted({rule for cell in cells for record in cell.rows for rule in record.rules})


def grading_table(cells: Cells) -> Table:
    """Accuracy under every rule, and how often they disagree."""
    rules = rules_of(cells)
    rows: list[tuple[Value, ...]] = []
    for cell in cells:
        if not cell.rows:
            continue
        shares = [cell.share(_right_under(rule)) for rule in rules]
        disagreeing = sum(disagrees(record) for record in cell.rows)
        undecided = sum(None in record.rules.values() for record in cell.rows)
        rows.append(
            (
                cell.n,
                LABELS[cell.method],
                budget_of(cell),
                len(cell.rows),
                *shares,
                disagreeing,
                undecided,
            )
        )
    return Table(
        name="grading",
        title="Grading rules",
        columns=(
            *_CELL,
            Column("rows", "Rows", "count"),
            *(Column(f"rule_{rule}", f"{rule} (%)", "share", INTERVAL) for rule in rules),
            Column("disagreements", "Disagreements", "count"),
            Column("undecided", "Undecided", "count"),
        ),
        rows=tuple(rows),
        note=(
            "Accuracy under each rule; all other tables go by the problem set's own, "
            f"`{cells.run.problems.rule}`. Undecided: a rule ran out of time, which counts as "
            "wrong under it and is no disagreement."
        ),
    )


def _right_under(rule: str) -> Measure:
    return lambda record: float(record.rules.get(rule) is True)


def disagrees(record: Record) -> bool:
    """Whether two rules judge a row differently."""
    return {True, False} <= set(record.rules.values())


def disagreement_table(cells: Cells) -> Table:
    """Every row on which rules disagree."""
    rules = rules_of(cells)
    rows: list[tuple[Value, ...]] = []
    for cell in cells:
        for seed, records in cell.seeds.items():
            for record in records:
                if disagrees(record):
                    verdicts = (record.rules.get(rule) for rule in rules)
                    where = (cell.n, LABELS[cell.method], budget_of(cell), seed, record.problem)
                    rows.append((*where, record.gold, record.answer, *verdicts))
    return Table(
        name="disagreements",
        title="Where grading rules disagree",
        columns=(
            *_CELL,
            Column("seed", "Seed", "count"),
            Column("problem", "Problem", "code"),
            Column("gold", "Right answer", "code"),
            Column("answer", "Answer", "code"),
            *(Column(f"rule_{rule}", rule, "verdict") for rule in rules),
        ),
        rows=tuple(rows),
    )


def failure_table(cells: Cells) -> Table:
    """Problems without a solution, by cause; they are tried again when the run is resumed."""
    counts: Counter[tuple[str, str, str]] = Counter()
    keys = {setting.key for setting in cells.settings}
    for (key, _), record in cells.run.records.items():
        if record.failure is not None and key in keys:
            counts[key, record.failure.type, record.failure.message] += 1
    return Table(
        name="failures",
        title="Failures",
        columns=(
            Column("setting", "Setting", "code"),
            Column("type", "Error", "code"),
            Column("message", "Message", "code"),
            Column("count", "Problems", "count"),
        ),
        rows=tuple((*found, count) for found, count in sorted(counts.items())),
        note="Problems that failed are tried again when the run is resumed.",
    )

"""Table 1: steps, output length and generated tokens; and what KV-Rescue saves of the base's."""

from __future__ import annotations

from kvrescue.evaluation.methods import BASE, HELPER
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.tables.accuracy import FULL
from kvrescue.evaluation.tables.cells import Cell, Cells, Measure, Sums, generated, paired
from kvrescue.evaluation.tables.table import INTERVAL, Column, Estimate, Table, Value

__all__ = ["saving", "steps", "token_table"]


def steps(record: Record) -> float:
    """Committed steps."""
    return record.steps


def length(record: Record) -> float:
    """Committed tokens."""
    return record.output_tokens


def _saved(sums: Sums) -> float | None:
    return 1 - sums[1] / sums[0] if sums[0] else None


def saving(cells: Cells, budget: int, n: int) -> Estimate | None:
    """By how much KV-Rescue's base tokens are below those of the evicted best-of-N, as a share."""
    tokens = generated(BASE)
    evicted, rescue = cells.get("best_of_n", budget, n), cells.get("kv_rescue", budget, n)
    return paired([(evicted, tokens), (rescue, tokens)], _saved)


def token_table(cells: Cells) -> Table:
    """Means per problem; full-KV stands in the columns of best-of-N, as in the paper."""
    rows: list[tuple[Value, ...]] = []
    for n in cells.ns:
        full = cells.get("full_kv", None, n)
        rows.append((n, FULL, *_pairs(full, None), None))
        for budget in reversed(cells.budgets):
            evicted, rescue = cells.get("best_of_n", budget, n), cells.get("kv_rescue", budget, n)
            rows.append((n, budget, *_pairs(evicted, rescue), saving(cells, budget, n)))
    return Table(
        name="tokens",
        title="Steps, output length and generated tokens (Table 1)",
        columns=(
            Column("n", "N", "count"),
            Column("budget", "Budget", "count"),
            Column("steps_bon", "Steps, BoN", "mean", INTERVAL),
            Column("steps_kvr", "Steps, KVR", "mean", INTERVAL),
            Column("length_bon", "Output tokens, BoN", "mean", INTERVAL),
            Column("length_kvr", "Output tokens, KVR", "mean", INTERVAL),
            Column("base_bon", "Base tokens, BoN", "mean", INTERVAL),
            Column("base_kvr", "Base tokens, KVR", "mean", INTERVAL),
            Column("helper_kvr", "Helper tokens, KVR", "mean", INTERVAL),
            Column("saved", "Base tokens saved (%)", "share", INTERVAL),
        ),
        rows=tuple(rows),
        note=(
            "Means per problem with 95 % intervals (bootstrap over problems). BoN: best-of-N of "
            "the evicted base, in the row `full` of the full-KV base; KVR: KV-Rescue. Generated "
            "tokens count every candidate, rejected and aborted ones too; output tokens are "
            "those committed. Saved: KVR's base tokens against BoN's, over their common problems."
        ),
    )


def _pairs(evicted: Cell | None, rescue: Cell | None) -> list[Estimate | None]:
    def mean(cell: Cell | None, measure: Measure) -> Estimate | None:
        return None if cell is None else cell.mean(measure)

    found = []
    for measure in (steps, length, generated(BASE)):
        found += [mean(evicted, measure), mean(rescue, measure)]
    return [*found, mean(rescue, generated(HELPER))]

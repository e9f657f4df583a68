"""Table 2: what interleaving and early exit do, one after the other."""

from __future__ import annotations

from kvrescue.evaluation.methods import BASE, Method
from kvrescue.evaluation.tables.accuracy import FULL, budget_of
from kvrescue.evaluation.tables.cells import Cell, Cells, generated
from kvrescue.evaluation.tables.degeneration import DegenerationRule, cut_off
from kvrescue.evaluation.tables.table import INTERVAL, SPREAD, Column, Estimate, Table, Value
from kvrescue.evaluation.tables.tokens import steps

__all__ = ["ablation_table"]

_LABELS: dict[Method, str] = {
    "full_kv": "full-KV",
    "best_of_n": "best-of-N",
    "interleaved": "+ interleaving",
    "kv_rescue": "+ early exit",
}


def ablation_table(cells: Cells) -> Table:
    """Rows are cumulative: best-of-N, with the helper's candidates, with detectors as well."""
    rows: list[tuple[Value, ...]] = []
    rules: set[DegenerationRule] = set()
    for n in cells.ns:
        wanted: list[tuple[Method, int | None]] = [("full_kv", None)]
        for budget in cells.budgets:
            wanted += [(method, budget) for method in _LABELS if method != "full_kv"]
        for method, at in wanted:
            cell = cells.get(method, at, n)
            if cell is None:
                rows.append((n, at or FULL, _LABELS[method], *[None] * 6))
                continue
            rule = DegenerationRule.of(cell.config.limits)
            rules.add(rule)
            rows.append(
                (
                    n,
                    budget_of(cell),
                    _LABELS[method],
                    cell.accuracy,
                    cell.share(rule),
                    cell.share(cut_off),
                    cell.mean(generated(BASE)),
                    cell.mean(steps),
                    _early_exit(cell),
                )
            )
    said = " ".join(sorted(rule.describe() for rule in rules))
    return Table(
        name="ablation",
        title="Interleaving and early exit (Table 2)",
        columns=(
            Column("n", "N", "count"),
            Column("budget", "Budget", "count"),
            Column("method", "Method"),
            Column("accuracy", "Accuracy (%)", "share", SPREAD),
            Column("degenerated", "Degen. (%)", "share", INTERVAL),
            Column("cut_off", "Wrong and cut off (%)", "share", INTERVAL),
            Column("base_tokens", "Base tokens", "mean", INTERVAL),
            Column("steps", "Steps", "mean", INTERVAL),
            Column("early_exit", "Early exit (%)", "share", INTERVAL),
        ),
        rows=tuple(rows),
        note=(
            "Rows are cumulative: best-of-N of the evicted base, with the helper's candidates, "
            f"with detectors as well (KV-Rescue). {said} Wrong and cut off: ended by a limit of "
            "tokens, context or steps. Early exit: share of the base's candidates that a detector "
            "ended. Base tokens and steps: means per problem."
        ),
    )


def _early_exit(cell: Cell) -> Estimate | None:
    if not cell.config.proposers[BASE].detectors:
        return None

    return cell.quotient(
        lambda record: record.use(BASE).aborted, lambda record: record.use(BASE).candidates
    )

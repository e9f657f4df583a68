"""The paper's shape: what its results look like, asked of a run, each with yes or no and figures.

A claim is judged by the estimates themselves, except where it is about an order over budgets: a
step in the wrong direction breaks that only when its 95 % interval leaves zero out, since
neighbouring budgets may be equal and samples are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kvrescue.evaluation.methods import BASE, HELPER
from kvrescue.evaluation.tables.accuracy import mean_recovery, recovery_of
from kvrescue.evaluation.tables.cells import Cell, Cells, Sums, correct, generated, paired
from kvrescue.evaluation.tables.comparisons import difference
from kvrescue.evaluation.tables.sources import helper_share, written_by
from kvrescue.evaluation.tables.table import Column, Estimate, Table
from kvrescue.evaluation.tables.tokens import saving, steps

__all__ = ["Check", "checks", "shape_table"]

NEAR: Final = 0.08
"""How far KV-Rescue may stay behind full-KV."""
RECOVERED: Final = 0.85
SAVED: Final = 0.35
MOST: Final = 0.5


@dataclass(frozen=True, slots=True)
class Check:
    """One claim, asked of a run."""

    name: str
    claim: str
    holds: bool | None
    """None where the run lacks what it takes."""
    figures: str


def checks(cells: Cells) -> list[Check]:
    """Every claim, in the paper's order."""
    return [
        _evicted_falls(cells),
        _near_full(cells),
        _recovers(cells),
        _saves(cells),
        _interleaving_gives_accuracy(cells),
        _early_exit_gives_tokens(cells),
        _helper_rises(cells),
    ]


def shape_table(cells: Cells) -> Table:
    """The claims as a table."""
    return Table(
        name="shape",
        title="The paper's shape",
        columns=(
            Column("check", "Check", "code"),
            Column("claim", "Claim"),
            Column("holds", "Holds", "verdict"),
            Column("figures", "Figures"),
        ),
        rows=tuple(
            (check.name, check.claim, check.holds, check.figures) for check in checks(cells)
        ),
        note=(
            "Judged by the estimates; brackets are 95 % intervals. A wrong step between "
            "neighbouring budgets counts only where its interval leaves zero out. - where the run "
            "lacks what it takes."
        ),
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f}".replace("-0.0", "0.0")


def _shown(estimate: Estimate | None, show: Callable[[float], str] = _percent) -> str:
    if estimate is None:
        return "-"
    text = show(estimate.value)
    if estimate.low is not None and estimate.high is not None:
        text += f" [{show(estimate.low)}, {show(estimate.high)}]"
    return text


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _all(found: Sequence[bool | None]) -> bool | None:
    """False when one is; None when one is not known, or there is none."""
    if False in found:
        return False
    return True if found and None not in found else None


def _least(cells: Cells) -> int | None:
    return min(cells.budgets, default=None)


def _evicted_falls(cells: Cells) -> Check:
    verdicts, said = [], []
    for n in cells.ns:
        row = [cell for b in cells.budgets if (cell := cells.get("best_of_n", b, n)) is not None]
        # An accuracy that falls with the budget rises along it.
        steps = [difference(above, below) for below, above in pairwise(row)]
        ends = difference(row[-1], row[0]) if len(row) > 1 else None
        verdicts.append(_rises(ends, steps))
        shown = ", ".join(f"{cell.budget}: {_shown(cell.accuracy)}" for cell in row)
        said.append(f"N = {n}: {shown or '-'}")
    return Check(
        "evicted_falls",
        "Evicted best-of-N falls with the budget",
        _all(verdicts),
        f"% at budget; {'; '.join(said)}",
    )


def _rises(ends: Estimate | None, steps: Sequence[Estimate | None]) -> bool | None:
    if ends is None:
        return None
    broken = any(step is not None and _below_zero(step) for step in steps)
    return ends.value > 0 and not broken


def _below_zero(step: Estimate) -> bool:
    return (step.value if step.high is None else step.high) < 0


def _near_full(cells: Cells) -> Check:
    verdicts: list[bool | None] = []
    said = []
    for n in cells.ns:
        for budget in cells.budgets:
            behind = difference(cells.reference("full_kv", n), cells.get("kv_rescue", budget, n))
            verdicts.append(None if behind is None else behind.value <= NEAR + 1e-9)
            said.append(f"N = {n}, {budget}: {_shown(behind)}")
    return Check(
        "near_full_kv",
        f"KV-Rescue stays within {100 * NEAR:.0f} points of full-KV at every budget",
        _all(verdicts),
        f"points behind; {'; '.join(said) or '-'}",
    )


def _recovers(cells: Cells) -> Check:
    budget = _least(cells)
    mean, said = None, []
    if budget is not None:
        mean = mean_recovery(cells, budget)
        for n in cells.ns:
            found = recovery_of(cells, "kv_rescue", budget, n)
            said.append(f"N = {n}: {_shown(found, _two_digits)}")
    return Check(
        "recovery",
        f"Mean recovery at the smallest budget is at least {RECOVERED}",
        None if mean is None else mean.value >= RECOVERED - 1e-9,
        f"budget {budget}: mean {_shown(mean, _two_digits)}; {'; '.join(said)}",
    )


def _largest(cells: Cells) -> int | None:
    return max(cells.ns, default=None)


def _saves(cells: Cells) -> Check:
    budget, n = _least(cells), _largest(cells)
    found = None if budget is None or n is None else saving(cells, budget, n)
    return Check(
        "base_tokens",
        f"Base tokens at the smallest budget are at least {100 * SAVED:.0f} % below evicted "
        "best-of-N, at the largest N",
        None if found is None else found.value >= SAVED - 1e-9,
        f"budget {budget}, N = {n}: {_shown(found)} % below",
    )


def _ablation(cells: Cells) -> tuple[Cell | None, ...]:
    """Full-KV, best-of-N, interleaved and KV-Rescue at the smallest budget and the largest N."""
    budget, n = _least(cells), _largest(cells)
    if budget is None or n is None:
        return (None,) * 4
    evicted = (cells.get(m, budget, n) for m in ("best_of_n", "interleaved", "kv_rescue"))
    return (cells.get("full_kv", None, n), *evicted)


def _interleaving_gives_accuracy(cells: Cells) -> Check:
    _, evicted, interleaved, rescue = _ablation(cells)

    def share(sums: Sums) -> float | None:
        before, between, after = sums
        return (between - before) / (after - before) if after > before else None

    found = paired([(cell, correct) for cell in (evicted, interleaved, rescue)], share)
    gained = difference(rescue, evicted)
    holds = None if found is None else found.value >= MOST
    if found is None and gained is not None and interleaved is not None:
        holds = False  # nothing was gained that interleaving could have given
    steps = [None if c is None else c.accuracy for c in (evicted, interleaved, rescue)]
    return Check(
        "interleaving_accuracy",
        "Interleaving gives most of the accuracy, at the smallest budget and the largest N",
        holds,
        f"{' -> '.join(_shown(step) for step in steps)} %; share {_shown(found, _two_digits)}",
    )


def _early_exit_gives_tokens(cells: Cells) -> Check:
    full, evicted, interleaved, rescue = _ablation(cells)
    tokens = generated(BASE)

    def share(sums: Sums) -> float | None:
        between, after, least = sums
        return (between - after) / (between - least) if between > least else None

    found = paired([(cell, tokens) for cell in (interleaved, rescue, full)], share)
    steps = [None if c is None else c.mean(tokens) for c in (evicted, interleaved, rescue, full)]
    shown = [_shown(step, lambda value: f"{value:,.0f}") for step in steps]
    return Check(
        "early_exit_tokens",
        "Early exit saves most of the base tokens by which interleaving is still above full-KV, "
        "at the smallest budget and the largest N",
        None if found is None else found.value >= MOST,
        f"{' -> '.join(shown[:3])}, full-KV {shown[3]}; share {_shown(found, _two_digits)}",
    )


def _helper_rises(cells: Cells) -> Check:
    verdicts, said = [], []
    for n in cells.ns:
        row = [cell for b in cells.budgets if (cell := cells.get("kv_rescue", b, n)) is not None]
        steps = [_more_helper(below, above) for below, above in pairwise(row)]
        ends = _more_helper(row[0], row[-1]) if len(row) > 1 else None
        verdicts.append(_rises(ends, steps))
        shares = ((b, helper_share(cells, b, n)) for b in cells.budgets)
        shown = ", ".join(f"{b}: {_shown(share)}" for b, share in shares if share is not None)
        said.append(f"N = {n}: {shown or '-'}")
    return Check(
        "helper_share",
        "The helper's share of committed steps rises as the budget falls",
        _all(verdicts),
        f"% at budget; {'; '.join(said)}",
    )


def _more_helper(below: Cell, above: Cell) -> Estimate | None:
    """Helper's share at a budget minus that at a larger one."""

    def gained(sums: Sums) -> float | None:
        if not (sums[1] and sums[3]):
            return None
        return sums[0] / sums[1] - sums[2] / sums[3]

    columns = []
    for cell in (below, above):
        columns += [(cell, written_by(HELPER)), (cell, steps)]
    return paired(columns, gained)

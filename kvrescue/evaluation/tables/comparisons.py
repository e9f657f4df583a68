"""KV-Rescue against its rivals at equal cost: base candidates, all candidates, FLOPs.

The paper matches the candidates of the base. KV-Rescue then draws as many again from the helper,
and the verifier reads them all, so two stricter views stand beside it: rivals with 2N candidates,
and the evicted base with as many candidates as KV-Rescue's FLOPs pay for. The latter lies between
measured N, where accuracy is taken to be linear in the logarithm of the FLOPs; it is not given
outside of what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from kvrescue.evaluation.tables.cells import Cell, Cells, Measure, Sums, correct, paired
from kvrescue.evaluation.tables.flops import Prices
from kvrescue.evaluation.tables.table import INTERVAL, Column, Estimate, Table, Value

__all__ = ["equal_candidates_table", "equal_flops_table", "interpolated"]


def difference(cell: Cell | None, other: Cell | None) -> Estimate | None:
    """Accuracy minus that of another cell, over the problems of both."""
    return paired([(cell, correct), (other, correct)], lambda sums: sums[0] - sums[1])


def equal_candidates_table(cells: Cells) -> Table:
    """Against the evicted base with N and with 2N candidates, and the helper with 2N."""
    rows: list[tuple[Value, ...]] = []
    for budget in cells.budgets:
        for n in cells.ns:
            rescue = cells.get("kv_rescue", budget, n)
            rivals = [
                cells.get("best_of_n", budget, n),
                cells.get("best_of_n", budget, 2 * n),
                cells.get("helper", None, 2 * n),
            ]
            row: list[Value] = [budget, n, _accuracy(rescue)]
            for rival in rivals:
                row += [_accuracy(rival), difference(rescue, rival)]
            rows.append(tuple(row))
    return Table(
        name="equal_candidates",
        title="At equal candidates",
        columns=(
            Column("budget", "Budget", "count"),
            Column("n", "N", "count"),
            Column("kv_rescue", "KV-Rescue, N + N (%)", "share"),
            Column("evicted_n", "Evicted, N (%)", "share"),
            Column("over_evicted_n", "KV-Rescue minus evicted, N (points)", "share", INTERVAL),
            Column("evicted_2n", "Evicted, 2N (%)", "share"),
            Column("over_evicted_2n", "KV-Rescue minus evicted, 2N (points)", "share", INTERVAL),
            Column("helper_2n", "Helper, 2N (%)", "share"),
            Column("over_helper_2n", "KV-Rescue minus helper, 2N (points)", "share", INTERVAL),
        ),
        rows=tuple(rows),
        note=(
            "N candidates of the base are equal base candidates (the paper's comparison), 2N are "
            "equal candidates in all. Differences over common problems, with 95 % intervals "
            "(bootstrap)."
        ),
    )


def _accuracy(cell: Cell | None) -> Estimate | None:
    return None if cell is None else cell.accuracy


def interpolated(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """Accuracy at a number of FLOPs, linear in their logarithm between neighbours.

    Args:
        points: (FLOPs, accuracy), in any order.
        at: FLOPs.

    Returns:
        None outside of the points.
    """
    known = sorted((math.log(cost), accuracy) for cost, accuracy in points if cost > 0)
    if not known or at <= 0:
        return None
    x = math.log(at)
    for (x0, y0), (x1, y1) in pairwise(known):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return known[0][1] if x == known[0][0] else None


def equal_flops_table(cells: Cells, prices: Prices) -> Table:
    """Against the evicted base at KV-Rescue's FLOPs."""
    rows: list[tuple[Value, ...]] = []
    for budget in cells.budgets:
        for n in cells.ns:
            rows.append((budget, n, *_equal_flops(cells, prices, budget, n)))
    return Table(
        name="equal_flops",
        title="At equal FLOPs",
        columns=(
            Column("budget", "Budget", "count"),
            Column("n", "N", "count"),
            Column("flops", "KV-Rescue (FLOPs)", "flops"),
            Column("kv_rescue", "KV-Rescue (%)", "share"),
            Column("evicted", "Evicted at these FLOPs (%)", "share", INTERVAL),
            Column("difference", "Difference (points)", "share", INTERVAL),
            Column("measured", "Evicted, measured"),
        ),
        rows=tuple(rows),
        note=(
            "Accuracy of the evicted best-of-N between the N that were run, linear in the "
            "logarithm of its mean FLOPs per problem; not given outside of them. Verifier "
            "included. 95 % intervals by bootstrap over the problems that all cells have solved."
        ),
    )


def _equal_flops(cells: Cells, prices: Prices, budget: int, n: int) -> list[Value]:
    rescue = cells.get("kv_rescue", budget, n)
    cost = prices.of(rescue)
    accuracy = _accuracy(rescue)
    if rescue is None or cost is None:
        why = "KV-Rescue was not run" if rescue is None else "a model's shape is not known"
        return [None, accuracy, None, None, why]
    spent = rescue.mean(cost)
    rivals: list[tuple[Cell, Measure]] = []
    for cell in cells:
        found = prices.of(cell)
        if (cell.method, cell.budget) == ("best_of_n", budget) and found is not None:
            rivals.append((cell, found))
    if not rivals:
        return [spent, accuracy, None, None, "evicted best-of-N was not run"]
    columns: list[tuple[Cell | None, Measure]] = [(rescue, correct), (rescue, cost)]
    for cell, measure in rivals:
        columns += [(cell, measure), (cell, correct)]

    def at_equal(sums: Sums) -> float | None:
        points = list(zip(sums[2::2], sums[3::2], strict=True))
        return interpolated(points, sums[1])

    def gained(sums: Sums) -> float | None:
        rival = at_equal(sums)
        return None if rival is None else sums[0] - rival

    evicted = paired(columns, at_equal)
    return [spent, accuracy, evicted, paired(columns, gained), _measured(rivals, spent)]


def _measured(rivals: Sequence[tuple[Cell, Measure]], spent: Estimate | None) -> str:
    """Where KV-Rescue's FLOPs lie among the measured ones."""
    means = [(cell.n, cell.mean(measure)) for cell, measure in rivals]
    costs = sorted((mean.value, n) for n, mean in means if mean is not None)
    shown = ", ".join(f"N = {n}: {value:.2e}" for value, n in costs)
    if spent is None or not costs:
        return shown
    if spent.value < costs[0][0]:
        return f"outside: below the least ({shown})"
    if spent.value > costs[-1][0]:
        return f"outside: above the most ({shown})"
    return shown

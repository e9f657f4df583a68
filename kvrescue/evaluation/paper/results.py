"""What the paper says of its results, computed again from its tables 1, 2, 3 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from kvrescue.evaluation.paper import (
    BUDGETS,
    DATASETS,
    PaperMethod,
    ablation,
    accuracies,
    decode_costs,
    wall_clock,
)
from kvrescue.evaluation.paper.claims import Cell, Claim
from kvrescue.evaluation.statistics import recovery

__all__ = ["result_claims"]

BASES: Final = ("7B", "72B")
SMALLEST: Final = min(BUDGETS)


def result_claims() -> tuple[Claim, ...]:
    """What the text says of the results, from tables 1, 2, 3 and 5."""
    return (
        _recovery(),
        _base_tokens(),
        *_wall_clock(),
        *_ablation(),
        _below_the_helper(),
        _tables_agree(),
        *_figures(),
    )


def _accuracies(base: str, n: int, method: PaperMethod, budget: int | None) -> dict[str, float]:
    """By data set, in per cent."""
    wanted = (base, n, method, budget)
    return {
        cell.dataset: cell.accuracy
        for cell in accuracies()
        if (cell.base, cell.n, cell.method, cell.budget) == wanted
    }


def _recovery() -> Claim:
    cells = []
    for base in BASES:
        for n in (1, 8):
            full = _accuracies(base, n, "full_kv", None)
            evicted = _accuracies(base, n, "best_of_n", SMALLEST)
            rescued = _accuracies(base, n, "kv_rescue", SMALLEST)
            for dataset in DATASETS:
                found = recovery(full[dataset], evicted[dataset], rescued[dataset])
                if found is not None:  # eviction loses something in all of them
                    numbers = {
                        "full_kv": full[dataset],
                        "evicted": evicted[dataset],
                        "kv_rescue": rescued[dataset],
                    }
                    cells.append(Cell(f"{base}, N = {n}, {dataset}", numbers, 100 * found))
    return Claim(
        "mean_recovery",
        "accuracy lost to eviction that KV-Rescue wins back, budget 64, mean over 2 bases, "
        "N = 1 and 8, and 5 data sets",
        "abstract; Table 5",
        stated=87,
        unit="%",
        recomputed=fmean(cell.value for cell in cells),
        cells=tuple(cells),
    )


def _base_tokens() -> Claim:
    tokens = {
        (row.dataset, row.method): row.base_tokens
        for row in decode_costs()
        if row.budget == SMALLEST
    }
    cells = tuple(
        _fewer(dataset, tokens[dataset, "best_of_n"], tokens[dataset, "kv_rescue"])
        for dataset in DATASETS
    )
    return Claim(
        "base_token_reduction",
        "fewer tokens of the base than evicted best-of-N, budget 64, 7B, N = 8, mean over 5 "
        "data sets",
        "abstract; Table 1",
        stated=43,
        unit="%",
        recomputed=fmean(cell.value for cell in cells),
        cells=cells,
        note="Compared with evicted best-of-N: interleaving and detector together.",
    )


def _fewer(where: str, before: float, after: float) -> Cell:
    return Cell(where, {"before": before, "after": after}, 100 * (1 - after / before))


def _wall_clock() -> Sequence[Claim]:
    rows = {(row.method, row.batch): row for row in wall_clock()}
    evicted, rescued = rows["best_of_n", 64], rows["kv_rescue", 64]
    speed = _numbers(evicted.problems_per_minute, rescued.problems_per_minute)
    seconds = [
        sum(_numbers(row.generation_s, row.scoring_s).values()) for row in (evicted, rescued)
    ]
    tokens = _fewer("batch 64", *_numbers(evicted.base_tokens, rescued.base_tokens).values())
    ratio = speed["after"] / speed["before"]
    return (
        Claim(
            "throughput",
            "problems per minute against evicted best-of-N, 72B, N = 8, batch 64",
            "text; Table 3",
            stated=3.3,
            decimals=1,
            unit="x",
            recomputed=ratio,
            cells=(Cell("batch 64", speed, ratio),),
            note=f"Generation and scoring times of the same table give "
            f"{seconds[0] / seconds[1]:.1f}x.",
        ),
        Claim(
            "throughput_tokens",
            "fewer tokens of the 72B base than evicted best-of-N, batch 64",
            "text; Table 3",
            stated=70,
            unit="%",
            recomputed=tokens.value,
            cells=(tokens,),
        ),
    )


def _numbers(before: float | None, after: float | None) -> dict[str, float]:
    if before is None or after is None:
        raise LookupError("a cell of Table 3 is empty")
    return {"before": before, "after": after}


def _ablation() -> Sequence[Claim]:
    rows = {(row.budget, row.method): row for row in ablation()}
    plain, interleaved = rows[64, "best_of_n"], rows[64, "interleaving"]
    whole, at_128 = rows[64, "kv_rescue"], rows[128, "kv_rescue"]
    tokens = _fewer("budget 64", interleaved.base_tokens, whole.base_tokens)
    share = recovery(whole.accuracy, plain.accuracy, interleaved.accuracy)
    return (
        Claim(
            "interleaving_share",
            "most of the accuracy won back comes from interleaving, before the detector is added "
            "(MATH500, budget 64)",
            "text; Table 2",
            stated=50,
            relation=">",
            unit="%",
            recomputed=None if share is None else 100 * share,
        ),
        Claim(
            "early_exit_tokens",
            "fewer tokens of the base once the detector is added (MATH500, budget 64)",
            "text; Table 2",
            stated=20,
            unit="%",
            recomputed=tokens.value,
            cells=(tokens,),
        ),
        Claim(
            "early_exit_accuracy",
            "points of accuracy that the detector adds: none are lost (MATH500, budget 64)",
            "text; Table 2",
            stated=0,
            relation=">=",
            recomputed=whole.accuracy - interleaved.accuracy,
        ),
        Claim(
            "degeneration",
            "degenerate trajectories that are left (MATH500, budget 128)",
            "text; Table 2",
            stated=0,
            decimals=1,
            unit="%",
            recomputed=at_128.degeneration,
            note=f"At budget 64: {plain.degeneration} % evicted, {interleaved.degeneration} % "
            f"interleaved, {whole.degeneration} % with the detector.",
        ),
    )


def _below_the_helper() -> Claim:
    cells = []
    for base in BASES:
        for n in (1, 8):
            evicted = _accuracies(base, n, "best_of_n", SMALLEST)
            helper = _accuracies(base, n, "helper_full_kv", None)
            for dataset in DATASETS:
                numbers = {"evicted": evicted[dataset], "helper": helper[dataset]}
                below = 100.0 * (evicted[dataset] < helper[dataset])
                cells.append(Cell(f"{base}, N = {n}, {dataset}", numbers, below))
    return Claim(
        "below_the_helper",
        "settings in which evicted best-of-N does worse than the helper alone, budget 64: many",
        "text; Table 5",
        stated=50,
        relation=">",
        unit="%",
        recomputed=fmean(cell.value for cell in cells),
        cells=tuple(cells),
    )


def _tables_agree() -> Claim:
    """Table 2 repeats MATH500 of tables 1 and 5, with steps rounded."""
    costs = {(row.method, row.budget): row for row in decode_costs() if row.dataset == "MATH500"}
    differing = 0
    for row in ablation():
        if row.method == "interleaving":
            continue
        cost = costs[row.method, row.budget]
        accuracy = _accuracies("7B", 8, row.method, row.budget)["MATH500"]
        differing += row.base_tokens != cost.base_tokens
        differing += abs(row.steps - cost.steps) > 0.5
        differing += row.accuracy != accuracy
    return Claim(
        "tables_agree",
        "cells of Table 2 that differ from the same ones in tables 1 and 5",
        "tables 1, 2 and 5",
        stated=0,
        recomputed=differing,
    )


def _figures() -> Sequence[Claim]:
    at_1, at_8 = (_accuracies("7B", n, "kv_rescue", 128)["MATH500"] for n in (1, 8))
    full = _accuracies("7B", 1, "full_kv", None)["MATH500"]
    return (
        Claim(
            "oracle_gap",
            "gap to full KV that the better of evicted base and helper would close (MATH500, "
            "budget 128)",
            "abstract; figure only",
            stated=79,
            unit="%",
            recomputed=None,
        ),
        Claim(
            "helper_share",
            "committed steps that the helper wrote (MATH500, budget 64; 17 % at budget 512)",
            "text; figure only",
            stated=33,
            unit="%",
            recomputed=None,
        ),
        Claim(
            "surpasses_full",
            "N from which KV-Rescue beats full-KV with one candidate (MATH500, 7B, budget 128)",
            "text; figure only",
            stated=4,
            recomputed=None,
            note=f"Table 5 has N = 1 ({at_1}, full KV {full}) and N = 8 ({at_8}).",
        ),
    )

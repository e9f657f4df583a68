"""The paper's tables, and what comes out of them."""

from __future__ import annotations

import pytest

from kvrescue.errors import UnknownNameError
from kvrescue.evaluation.paper import (
    BUDGETS,
    DATASETS,
    ablation,
    accuracies,
    dataset_named,
    decode_costs,
    wall_clock,
)
from kvrescue.evaluation.paper.check import check_paper
from kvrescue.evaluation.paper.claims import Claim
from kvrescue.evaluation.statistics import recovery

CLAIMS = {claim.name: claim for claim in check_paper()}


def test_tables_are_whole() -> None:
    assert len(decode_costs()) == len(DATASETS) * (1 + 2 * len(BUDGETS))
    assert len(ablation()) == 7
    assert len(wall_clock()) == 6
    keys = {(c.base, c.n, c.method, c.budget, c.dataset) for c in accuracies()}
    assert len(keys) == len(accuracies()) == 2 * 2 * (2 * len(BUDGETS) + 2) * len(DATASETS)


def test_cells_are_possible() -> None:
    for cell in accuracies():
        assert 0 <= cell.accuracy <= 100
        assert (cell.std is None) == (cell.dataset not in ("AIME24", "AMC23"))
        assert (cell.budget is None) == cell.method.endswith("full_kv")
    for row in decode_costs():
        assert (row.helper_tokens is None) == (row.method != "kv_rescue")
        # What is committed was generated; a step is at least a token.
        assert row.base_tokens > row.output_tokens > row.steps


def test_the_helper_alone_does_not_depend_on_the_base() -> None:
    rows = [c for c in accuracies() if c.method == "helper_full_kv"]
    by_base = [
        {(c.n, c.dataset): (c.accuracy, c.std) for c in rows if c.base == base}
        for base in ("7B", "72B")
    ]
    assert by_base[0] == by_base[1]


def test_mean_recovery_is_87_percent() -> None:
    claim = CLAIMS["mean_recovery"]
    assert len(claim.cells) == 20
    assert len({cell.where for cell in claim.cells}) == 20
    for cell in claim.cells:
        full, evicted, rescued = cell.numbers.values()
        found = recovery(full, evicted, rescued)
        assert found is not None
        assert cell.value == pytest.approx(100 * found)
    mean = sum(cell.value for cell in claim.cells) / 20
    assert claim.recomputed == pytest.approx(mean)
    assert round(mean) == 87


def test_mean_reduction_of_base_tokens_is_43_percent() -> None:
    claim = CLAIMS["base_token_reduction"]
    assert [cell.where for cell in claim.cells] == list(DATASETS)
    reductions = [1 - cell.numbers["after"] / cell.numbers["before"] for cell in claim.cells]
    assert round(100 * sum(reductions) / len(reductions)) == 43
    assert claim.recomputed == pytest.approx(100 * sum(reductions) / len(reductions))


def test_throughput() -> None:
    assert round(CLAIMS["throughput"].recomputed or 0, 1) == 3.3
    assert round(CLAIMS["throughput_tokens"].recomputed or 0) == 70


def test_which_claims_do_not_come_out() -> None:
    """All others do. Each of these says what comes out instead."""
    differing = {claim.name for claim in CLAIMS.values() if claim.agrees is False}
    assert differing == {
        "sequence_rescue_72B",
        "attention_share_7B",
        "helper_fraction_7B",
        "evicted_gain_4096",
        "evicted_gain_12288",
    }
    unknown = {claim.name for claim in CLAIMS.values() if claim.agrees is None}
    assert unknown == {"oracle_gap", "helper_share", "surpasses_full"}
    assert all(CLAIMS[name].note for name in differing)
    assert all("not derivable" in CLAIMS[f"evicted_gain_{n}"].note for n in (4096, 12288))


def test_names_are_unique() -> None:
    assert len(CLAIMS) == len(check_paper())


@pytest.mark.parametrize(
    ("stated", "decimals", "value", "agrees"),
    [
        (87, 0, 87.4, True),
        (87, 0, 87.6, False),
        (3.3, 1, 3.35, True),
        (3.3, 1, 3.36, False),
        (0.31, 2, 0.3047, False),
        (2500, -2, 2496, True),
        (2500, -2, 2449, False),
    ],
)
def test_agreement_is_rounding(stated: float, decimals: int, value: float, agrees: bool) -> None:
    claim = Claim("c", "", "", stated=stated, recomputed=value, decimals=decimals)
    assert claim.agrees is agrees


@pytest.mark.parametrize(
    ("relation", "below", "equal", "above"),
    [(">", False, False, True), (">=", False, True, True), ("<", True, False, False)],
)
def test_relations(relation: str, below: bool, equal: bool, above: bool) -> None:
    found = [
        Claim("c", "", "", stated=5, recomputed=value, relation=relation).agrees  # type: ignore[arg-type]
        for value in (4, 5, 6)
    ]
    assert found == [below, equal, above]
    assert Claim("c", "", "", stated=5, recomputed=None).agrees is None


def test_data_sets_by_name() -> None:
    assert dataset_named(" math500 ") == "MATH500"
    with pytest.raises(UnknownNameError, match="did you mean 'MATH500'"):
        dataset_named("MATH50")

"""The paper's shape, asked of runs that have it and of runs that lack one thing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kvrescue.evaluation.methods import BASE, HELPER, Method
from kvrescue.evaluation.problems import Problem
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.tables.cells import Cells
from kvrescue.evaluation.tables.shape import checks, shape_table
from tests.evaluation.runs_parts import grid, record, run, use

Key = tuple[Method, int | None]

RIGHT: Mapping[Key, int] = {
    ("full_kv", None): 48,
    ("best_of_n", 16): 5,
    ("best_of_n", 64): 30,
    ("interleaved", 16): 45,
    ("interleaved", 64): 46,
    ("kv_rescue", 16): 46,
    ("kv_rescue", 64): 47,
}
"""Of 50."""
TOKENS: Mapping[Key, int] = {
    ("full_kv", None): 100,
    ("best_of_n", 16): 240,
    ("best_of_n", 64): 150,
    ("interleaved", 16): 160,
    ("interleaved", 64): 120,
    ("kv_rescue", 16): 110,
    ("kv_rescue", 64): 105,
}
HELPED: Mapping[Key, int] = {("kv_rescue", 16): 4, ("kv_rescue", 64): 1}
"""Steps of ten."""


def verdicts(
    right: Mapping[Key, int] = RIGHT,
    tokens: Mapping[Key, int] = TOKENS,
    helped: Mapping[Key, int] = HELPED,
    without: tuple[Key, ...] = (),
) -> dict[str, bool | None]:
    def fill(of: Setting, problem: Problem, place: int) -> Record | None:
        key: Key = (of.method, of.budget)
        if key in without:
            return None
        steps = helped.get(key, 0)
        sources = (HELPER,) * steps + (BASE,) * (10 - steps)
        uses = {name: use(tokens[key]) for name in of.config.proposers}
        return record(of, problem, place < right[key], sources=sources, uses=uses)

    settings = grid(("full_kv", "best_of_n", "interleaved", "kv_rescue"), ns=(8,))
    return {check.name: check.holds for check in checks(Cells.of(run(settings, 50, fill)))}


def test_the_papers_shape_holds() -> None:
    assert set(verdicts().values()) == {True}


@pytest.mark.parametrize(
    ("broken", "change"),
    [
        ("evicted_falls", {"right": {("best_of_n", 64): 5}}),
        ("evicted_falls", {"right": {("best_of_n", 64): 1, ("best_of_n", 16): 30}}),
        ("near_full_kv", {"right": {("kv_rescue", 64): 43}}),
        ("recovery", {"right": {("kv_rescue", 16): 41}}),
        ("base_tokens", {"tokens": {("best_of_n", 16): 165}}),
        ("interleaving_accuracy", {"right": {("interleaved", 16): 25}}),
        ("early_exit_tokens", {"tokens": {("kv_rescue", 16): 135}}),
        ("helper_share", {"helped": {("kv_rescue", 64): 4}}),
    ],
)
def test_each_claim_can_fail(broken: str, change: dict[str, dict[Key, int]]) -> None:
    known = {"right": RIGHT, "tokens": TOKENS, "helped": HELPED}
    changed = {name: {**known[name], **part} for name, part in change.items()}
    found = verdicts(**changed)  # type: ignore[arg-type]
    assert found[broken] is False


@pytest.mark.parametrize(
    ("missing", "unknown"),
    [
        (("full_kv", None), {"near_full_kv", "recovery", "early_exit_tokens"}),
        (("best_of_n", 64), {"evicted_falls"}),
        (("interleaved", 16), {"interleaving_accuracy", "early_exit_tokens"}),
        (("kv_rescue", 64), {"helper_share", "near_full_kv"}),
    ],
)
def test_what_is_not_known_is_not_judged(missing: Key, unknown: set[str]) -> None:
    found = verdicts(without=(missing,))
    assert {name for name, holds in found.items() if holds is None} == unknown
    assert {holds for name, holds in found.items() if name not in unknown} == {True}


def test_no_gain_is_no_proof_of_interleaving() -> None:
    right = {**RIGHT, ("best_of_n", 16): 48}
    assert verdicts(right=right)["interleaving_accuracy"] is False


def test_an_empty_run_is_not_judged() -> None:
    table = shape_table(Cells.of(run([], 3, lambda *_: None)))
    assert set(table.column("holds")) == {None}

"""The shopping bill: solutions are right, splits are disjoint, the checker is exact."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.evaluation.bill import (
    MAX_TOTAL,
    PURCHASES,
    Bill,
    bills,
    draw_bill,
    extract_answer,
)
from kvrescue.types import SEPARATOR

KALE_AND_FIG = Bill("Bob", ("kale", "fig"), (("fig", 12), ("rice", 3), ("kale", 4)))

drawn_bills = st.builds(
    lambda seed, menu, purchases: draw_bill(random.Random(seed), "train", menu, purchases),
    st.integers(0, 10**9),
    st.integers(9, 40),
    st.integers(1, 9),
)


def test_the_wording_of_a_problem_and_its_solution() -> None:
    assert KALE_AND_FIG.question == (
        "To do for Bob: #1 kale, #2 fig, #3 pay. Prices: fig 12, rice 3, kale 4. "
        "How many coins does Bob pay?"
    )
    assert KALE_AND_FIG.steps == (
        "#1 kale 4.",
        "0 + 4 = 4.",
        "#2 fig 12.",
        "4 + 12 = 16.",
        "#3 pay \\boxed{16}.",
    )


@given(drawn_bills)
def test_the_gold_solution_passes_its_own_checks(bill: Bill) -> None:
    steps = bill.steps
    for position, step in enumerate(steps):
        assert bill.check_step(steps[:position], step)
    assert bill.next_step(steps) is None
    assert bill.grade(bill.solution)
    assert bill.answer <= MAX_TOTAL
    assert len(bill.solution.split(SEPARATOR)) == 2 * len(bill.purchases) + 1


@given(drawn_bills, st.data())
def test_a_changed_step_is_wrong(bill: Bill, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(bill.steps) - 1))
    other = data.draw(st.sampled_from(bill.steps))
    step = bill.steps[position]
    assert bill.check_step(bill.steps[:position], other) == (other == step)
    assert not bill.check_step(bill.steps[:position], step + " ")


def test_a_slip_is_counted_once() -> None:
    slipped = ["#1 kale 4.", "0 + 4 = 5."]
    assert not KALE_AND_FIG.check_step(slipped[:1], slipped[1])
    assert KALE_AND_FIG.check_step(slipped, "#2 fig 12.")
    assert KALE_AND_FIG.check_step([*slipped, "#2 fig 12."], "5 + 12 = 17.")


@pytest.mark.parametrize("history", [["nonsense"], ["#1 kale 4.", "nonsense", "#2 fig 12."]])
def test_nothing_is_right_after_an_unreadable_step(history: list[str]) -> None:
    assert KALE_AND_FIG.next_step(history) is None
    assert not KALE_AND_FIG.check_step(history, "0 + 4 = 4.")


def test_splits_are_disjoint_whatever_the_seed() -> None:
    questions = {
        split: {bill.question for seed in range(3) for bill in bills(split, seed, 40)}
        for split in ("train", "validation", "test")
    }
    assert all(len(found) == 120 for found in questions.values())
    assert not questions["train"] & questions["validation"]
    assert not questions["train"] & questions["test"]
    assert not questions["validation"] & questions["test"]
    assert {bill.split for bill in bills("test", 7, 20)} == {"test"}


def test_problems_depend_on_their_index_alone() -> None:
    assert bills("validation", 3, 5) == bills("validation", 3, 9)[:5]
    assert {len(bill.purchases) for bill in bills("test", 0, 60)} == set(PURCHASES)


@pytest.mark.parametrize(("menu", "purchases"), [(5, 6), (41, 3), (24, 10), (24, 0)])
def test_impossible_sizes_are_refused(menu: int, purchases: int) -> None:
    with pytest.raises(ValueError, match="a bill needs"):
        draw_bill(random.Random(0), "train", menu, purchases)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown split"):
        draw_bill(random.Random(0), "dev", 24, 6)  # type: ignore[arg-type]


def test_the_answer_is_the_last_boxed_number() -> None:
    assert extract_answer("\\boxed{3} no, \\boxed{40}.") == 40
    assert extract_answer("no answer") is None

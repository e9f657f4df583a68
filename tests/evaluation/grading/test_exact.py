"""Exact grading: whole numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.errors import ConfigError
from kvrescue.evaluation.bill import bill_at
from kvrescue.evaluation.grading import Grade, GradingRule, grade_exact


@given(st.integers(0, 50), st.integers(-2, 2))
def test_it_is_the_bills_own_grading(index: int, off: int) -> None:
    bill = bill_at("test", 0, index)
    text = bill.solution.replace(rf"\boxed{{{bill.answer}}}", rf"\boxed{{{bill.answer + off}}}")
    grade = grade_exact(text, bill.answer)
    assert grade.correct is bill.grade(text) is (off == 0)
    assert grade.answer == str(bill.answer + off)
    assert (grade.paper, grade.math_verify, grade.grading) == (None, None, GradingRule.EXACT)


@given(st.integers(), st.integers())
def test_equality_of_numbers(a: int, b: int) -> None:
    assert grade_exact(rf"\boxed{{{a}}}", str(b)).correct is (a == b)
    assert grade_exact(rf"\boxed{{{a:+}}}", a).correct


@pytest.mark.parametrize("answer", ["4.0", "04x", "four", "8/2", "٤", "4" * 5000, "", "4_0"])
def test_what_is_no_whole_number_is_wrong(answer: str) -> None:
    assert not grade_exact(rf"\boxed{{{answer}}}", 4).correct


@pytest.mark.parametrize("gold", ["4.5", "", "x", "1,000"])
def test_a_gold_answer_must_be_a_whole_number(gold: str) -> None:
    with pytest.raises(ConfigError, match=r"gold = .*: expected a whole number"):
        grade_exact(r"\boxed{4}", gold)


def test_a_grade_as_data_says_what_it_is() -> None:
    grade: Grade = grade_exact(r"\boxed{4}", 5)
    assert grade.as_dict() == {
        "grading": "exact",
        "answer": "4",
        "gold": "5",
        "correct": False,
        "exact": False,
        "paper": None,
        "math_verify": None,
        "timed_out": False,
        "troubles": [],
    }

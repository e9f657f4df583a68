"""`kvrescue grade`."""

from __future__ import annotations

import pytest

from tests.cli.run import Ran, fails


def test_right_by_both_rules() -> None:
    ran = Ran("grade", r"so \boxed{\frac12}", "0.5")
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout.startswith("answer: \\frac12\n")
    assert ran.stdout.count("right") == 2
    assert "wrong" not in ran.stdout


def test_json_shows_a_disagreement() -> None:
    assert Ran("grade", "-", "[1,2]", "--json", stdin=r"\boxed{(1,2)}").json == {
        "grading": "math",
        "answer": "(1,2)",
        "gold": "[1,2]",
        "correct": True,
        "exact": None,
        "paper": True,
        "math_verify": False,
        "timed_out": False,
        "troubles": [],
    }


def test_an_answer_that_takes_too_long() -> None:
    ran = Ran("grade", r"\boxed{9^{9^{9^9}}}", "4", "--timeout", "0.2")
    assert ran.code == 0
    assert ran.stdout.count("wrong (no verdict after 0.2 s") == 2


@pytest.mark.parametrize("rule", ["exact", "math"])
def test_an_unclosed_box_is_no_answer(rule: str) -> None:
    ran = Ran("grade", r"\boxed{4} \boxed{4", "4", "--rule", rule)
    assert ran.code == 0
    assert "answer: none" in ran.stdout
    assert "right" not in ran.stdout


@pytest.mark.parametrize(
    ("response", "why"),
    [(r"\boxed{}", "the last box is empty"), ("4", "no box"), (r"\boxed{4", "not closed")],
)
def test_why_there_is_no_answer(response: str, why: str) -> None:
    (line, *_) = Ran("grade", response, "4").stdout.splitlines()
    assert line.startswith("answer: none")
    assert why in line


def test_bad_input() -> None:
    assert "expected 'exact' or 'math'" in fails(4, "ConfigError", "grade", "x", "4", "--rule", "y")
    assert "gold = '0.5'" in fails(4, "ConfigError", "grade", "x", "0.5", "--rule", "exact")
    assert "timeout = 0.0" in fails(4, "ConfigError", "grade", "x", "4", "--timeout", "0")
    for seconds in ("1e308", "inf", "nan", "1e-300", "86401"):
        told = fails(4, "ConfigError", "grade", "x", "4", "--timeout", seconds)
        assert told.startswith("timeout = ")
        assert told.endswith("from 0.01 to 86400")
    fails(3, "InputError", "grade", "-", "4", stdin=b"\xff\xfe")
    fails(2, "UsageError", "grade", "x")

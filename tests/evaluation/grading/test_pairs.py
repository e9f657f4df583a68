"""Our rules against the official grader's verdicts and math-verify's; golds against themselves."""

from __future__ import annotations

import itertools

import pytest

from kvrescue.answers import extract_answer
from kvrescue.evaluation.grading.math_verify_rule import math_verify_equal
from kvrescue.evaluation.grading.paper_rule import paper_equal
from tests.evaluation.grading.cases import GOLDS, NO_BOX, PAIRS, Pair

DELIBERATE = {
    "mixed number": "the official grader reads 3 1/2 as a product, so 3 1/2 would be 3/2",
    "plus-minus vs list": "the official grader destroys plus-minus",
}
"""Where the paper's rule and the official grader differ though there is an answer; ours agrees with
the human in all of them."""

DESTROYED = [
    ("a+b", "+b"),
    ("x+m", "x+"),
    ("n^2+c", "n^2+d"),
    (r"\frac{a}{b}", r"\frac{c}{b}"),
    (r"\pm 3", "3"),
    ("s=t", "s=u"),
    ("information", r"\infty"),
    ("2j+1", "2i+1"),
]
"""Different answers that the official grader makes one by destroying parts."""

EQUAL = [
    ("10 inches", "10 cm"),
    ("5 square feet", "5"),
    (r"12\text{ cm}^2", "12"),
    ("twenty-five", "25"),
    ("one hundred and six", "106"),
    ("1{,}234", "1234"),
    (r"10,\!000", "10000"),
    ("k = 5", "5"),
    ("f(x)=x+1", "x+1"),
    (".5", r"\frac12"),
    (r"\dfrac\pi2", r"\frac{\pi}{2}"),
    (r"\frac{\sqrt3}2", r"\dfrac{\sqrt{3}}{2}"),
    (r"\{1,2\}", r"\{2, 1\}"),
    (r"(-\infty,0)\cup(1,2)", r"(1,2]\cup(-\infty,0)"),
    ("2x+2y=4", "x+y=2"),
    ("y=2x+1", "y-2x-1=0"),
    ("3>x", "x<3"),
    (r"3\text{ and }5", "3, 5"),
    ("1, 2, and 3", "1,2,3"),
    (r"3\times10^4", "30000"),
    ("B. 45", "B"),
    ("(1+i)^2", "2i"),
    (r"\sin^2x+\cos^2x", "1"),
    (r"\log_2 8", "3"),
    ("52_8", "52_{8}"),
    (r"x=1\text{ or }x=2", "1,2"),
    ("(a+b)(c)", "ac+bc"),
    ("(0.5, 2)", r"(\frac12, \sqrt4)"),
    (r"\begin{bmatrix}0.5\\2\end{bmatrix}", r"\begin{pmatrix}1/2\\2\end{pmatrix}"),
    ("1/0", r"\dfrac10"),
    ("x=1,y=2", "y=2, x=1"),
    ("x_1=0.5,x_2=3", r"x_{2}=3\text{ and }x_{1}=\frac12"),
    ("x=1,y=2", "1,2"),
    (r"\mathbb{R}", r"\mathbb{R}"),
    (r"\mathbb R", r"\mathbb{R}"),
    (r"\Bbb{R}", r"x\in\mathbb{R}"),
    (r"\overline{z}", r"\overline z"),
    (r"2\infty", r"\infty"),
]
DIFFERENT = [
    *DESTROYED,
    ("52_8", "52"),
    ("even", "neve"),
    (r"n\text{ odd}", r"n\text{ even}"),
    ("C+D", "D"),
    ("C", "D"),
    ("(1,2)", "(1,2,3)"),
    (r"\{1,2\}", r"\{1,3\}"),
    ("x<3", r"x\le 3"),
    ("x<3", "x>3"),
    ("x=1", "x=2"),
    ("y=x", "y=2x"),
    ("i", "1"),
    ("0", "0.001"),
    ("", ""),
    ("5", ""),
    ("1/0", "2/0"),
    ("0/0", "1/0"),
    ("0/0", r"\infty-\infty"),
    ("1/0", r"\infty"),
    ("1/0", r"\log 0"),
    ("1/0,2", "3/0,2"),
    ("x=1/0", "x=2/0"),
    ("1/0<x", "2/0<x"),
    ("1<2", "3<4"),
    ("f(5)", "5"),
    ("x=1,y=2", "y=1,x=2"),
    ("x=1,y=2", "x=2,y=1"),
    (r"\{x=1,y=2\}", r"\{x=2,y=1\}"),
    (r"\mathbb{R}", r"\mathbb{Z}"),
    (r"\mathbb{R}", "R"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.note)
def test_paper_rule_against_the_official_grader(pair: Pair) -> None:
    answer = extract_answer(pair.response)
    if pair.note in NO_BOX:
        assert answer is None
        return
    assert answer is not None
    ours = paper_equal(answer, pair.gold)
    if pair.note in DELIBERATE:
        assert (ours, pair.human, pair.official) == (True, True, False)
    else:
        assert ours is pair.official


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.note)
def test_math_verify_on_the_last_box(pair: Pair) -> None:
    answer = extract_answer(pair.response)
    if answer is None:
        assert pair.note in NO_BOX
    elif pair.note == "two boxes, last right":  # on the whole response it takes both
        assert math_verify_equal(answer, pair.gold) is pair.human is not pair.math_verify
    else:
        assert math_verify_equal(answer, pair.gold) is pair.math_verify


def test_every_named_difference_is_a_pair() -> None:
    assert {pair.note for pair in PAIRS} >= NO_BOX | set(DELIBERATE)


@pytest.mark.parametrize("gold", GOLDS)
def test_a_gold_answer_is_itself(gold: str) -> None:
    answer = extract_answer(rf"Thus $\boxed{{{gold}}}$.")
    assert answer is not None
    assert paper_equal(answer, gold)
    assert math_verify_equal(answer, gold)


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal(a: str, b: str) -> None:
    assert paper_equal(a, b)
    assert paper_equal(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different(a: str, b: str) -> None:
    assert not paper_equal(a, b)
    assert not paper_equal(b, a)


def test_golds_differ_from_one_another() -> None:
    """Neighbours are of a kind: what a rule loses of an answer shows among them."""
    same = [pair for pair in itertools.pairwise(GOLDS) if paper_equal(*pair)]
    assert same == []

"""Laws of the paper's rule."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvrescue.evaluation.grading.normalise import normalise
from kvrescue.evaluation.grading.paper_rule import paper_equal
from kvrescue.evaluation.grading.words import number_in_words
from tests.evaluation.grading.cases import GOLDS, PAIRS

ANSWERS = st.sampled_from([*GOLDS, *(pair.gold for pair in PAIRS)])
SMALL = st.integers(-30, 30)
DECIMALS = st.decimals("-2000", "2000", allow_nan=False, places=4)


@given(st.text(max_size=80))
def test_reflexive_whatever_the_text(text: str) -> None:
    assert paper_equal(text, text) is bool(text.strip())


@given(st.text(alphabet="\\{}[]()$,.^_=|%/+-~ 12axbtexfrcqp&\n", max_size=60))
def test_normalising_never_fails_nor_loses_everything(text: str) -> None:
    assert bool(normalise(text)) is bool(text.strip())


@given(ANSWERS, ANSWERS)
def test_symmetric(a: str, b: str) -> None:
    assert paper_equal(a, b) is paper_equal(b, a)


@given(ANSWERS, ANSWERS, st.sampled_from(["$", "$$", " ", "\n ", r"\boxed", r"\left", "."]))
def test_wrapping_changes_nothing(a: str, b: str, wrap: str) -> None:
    wrapped = {
        r"\boxed": rf"\boxed{{{a}}}",
        r"\left": a.replace("(", r"\left( ").replace(")", r" \right)") if "left" not in a else a,
        ".": f"{a}.",
    }.get(wrap, f"{wrap}{a}{wrap}")
    assert paper_equal(wrapped, b) is paper_equal(a, b)


@given(ANSWERS, st.integers(0, 3), st.sampled_from([" ", r"\,", r"\ "]))
def test_spaces_around_signs_change_nothing(a: str, count: int, space: str) -> None:
    assume(r"\," not in a and r"\begin" not in a)
    around = space * count
    spaced = "".join(f"{around}{sign}{around}" if sign in "+=,-" else sign for sign in a)
    assert paper_equal(spaced, a)


@given(st.text(alphabet="abcdefgXYZ ", min_size=1).filter(str.strip))
def test_case_changes_nothing(text: str) -> None:
    assert paper_equal(text.swapcase(), text)


def close(a: Fraction, b: Fraction) -> bool:
    return abs(a - b) <= Fraction(1, 10_000) * max(abs(a), abs(b))


@given(DECIMALS, DECIMALS | st.just(None), st.sampled_from([1, 100]), st.integers(-3, 3))
def test_tolerance_of_numbers(a: object, other: object, factor: int, steps: int) -> None:
    """Against exact fractions; other numbers are far, or at the edge of the tolerance."""
    left = Fraction(str(a))
    right = Fraction(str(other)) if other is not None else left * factor
    right += abs(right) * Fraction(steps, 20_000)
    right = Fraction(round(right * 10**10), 10**10)
    text = f"{right.numerator * 10**10 // right.denominator / 10**10:.10f}"
    right = Fraction(text)
    expected = close(left, right) or close(100 * left, right) or close(left, 100 * right)
    assert paper_equal(str(a), text) is expected


@given(st.integers(1, 500), st.integers(1, 500), st.integers(-5, 5).filter(bool))
def test_fractions_equal_their_decimals_and_no_others(a: int, b: int, wrong: int) -> None:
    fraction = rf"\frac{{{a}}}{{{b}}}"
    assert paper_equal(f"{a / b:.9f}", fraction)
    assert paper_equal(f"{a}/{b}", fraction)
    assert not paper_equal(f"{a / b + wrong:.9f}", fraction)


@given(st.lists(SMALL, min_size=2, max_size=4), st.lists(SMALL, min_size=2, max_size=4))
@pytest.mark.parametrize("brackets", ["()", "[]", "(]", "[)", ("", "")])
def test_tuples_are_compared_entry_by_entry(
    brackets: tuple[str, str], a: list[int], b: list[int]
) -> None:
    def same(x: int, y: int) -> bool:
        return x == y or 100 * x == y or x == 100 * y

    left, right = brackets
    expected = len(a) == len(b) and all(map(same, a, b))
    text = left + ", ".join(map(str, a)) + right
    assert paper_equal(text, f"({','.join(map(str, b))})") is expected
    assert paper_equal(text, f"({','.join(map(str, a))})")


@given(st.lists(st.integers(-30, 30), min_size=2, max_size=5, unique=True), st.randoms())
def test_sets_come_in_any_order(entries: list[int], random: object) -> None:
    other = list(entries)
    random.shuffle(other)  # type: ignore[attr-defined]
    texts = [rf"\{{{','.join(map(str, e))}\}}" for e in (entries, other)]
    assert paper_equal(*texts)
    missing = rf"\{{{','.join(map(str, entries[1:]))}\}}"
    assert not paper_equal(texts[0], missing)


NAMES = st.sampled_from(["x", "y", "z", r"\alpha", "x_1", "x_2", "f(x)", "AB"])


@given(st.dictionaries(NAMES, SMALL, min_size=2, max_size=4), st.data())
@pytest.mark.parametrize("brackets", ["", "()", r"\{ \}"])
def test_names_are_said_in_any_order(
    brackets: str, said: dict[str, int], data: st.DataObject
) -> None:
    opening, closing = brackets.split() if " " in brackets else (brackets[:1], brackets[1:])

    def text(values: dict[str, int], names: list[str]) -> str:
        return opening + ",".join(f"{name}={values[name]}" for name in names) + closing

    names = list(said)
    other = data.draw(st.permutations(names))
    assert paper_equal(text(said, names), text(said, other))
    first, *_, last = names
    wrong = {**said, first: said[last] + 1, last: said[first] - 1}
    assume(all(not close_or_percent(wrong[name], said[name]) for name in (first, last)))
    assert not paper_equal(text(said, names), text(wrong, other))


def close_or_percent(x: int, y: int) -> bool:
    return x == y or 100 * x == y or x == 100 * y


NOTHING = st.sampled_from(["0", "(1-1)", r"(\sqrt4-2)", r"\log 1", "((x+1)^2-x^2-2x-1)"])
AROUND = st.sampled_from(["@", "x=@", "(@,1)", r"\{@\}", "@+1", "y<@", r"\sqrt{@}"])


@settings(max_examples=40)
@given(SMALL, SMALL, NOTHING, AROUND)
def test_what_is_undefined_is_itself_and_nothing_else(a: int, b: int, zero: str, form: str) -> None:
    left, right = (form.replace("@", rf"\frac{{{top}}}{{{zero}}}") for top in (a, b))
    assert paper_equal(left, right) is (a == b)


TOKENS = st.sampled_from(
    [
        *("f(5)", "x", "y", "(", ")", "{", "}", "[", "]", r"\{", r"\}", "0", "1", "5", "i", "e"),
        *("+", "-", "*", "/", "=", "<", r"\le", ",", "|", "'", ":", "_", r"\in", r"\cup", r"\pm"),
        *(r"\frac{1}{0}", r"\frac{", r"\sqrt{", r"\infty", r"\lim_{x\to0}", r"\mod", r"\binom{2}"),
        *(
            r"\log",
            r"\sin",
            r"\pi",
            r"\vec{x}",
            r"\mathbb{R}",
            r"\emptyset",
            r"\overline{z}",
            "d/dx",
        ),
        *(r"\lfloor", r"\rfloor", r"\begin{pmatrix}1\\2\end{pmatrix}", r"\int_0^1 x dx"),
    ]
)


@given(
    st.lists(TOKENS, max_size=6).map("".join), ANSWERS | st.lists(TOKENS, max_size=4).map("".join)
)
def test_whatever_cannot_be_read_is_a_verdict(answer: str, gold: str) -> None:
    assert paper_equal(answer, gold) in (True, False)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("f(5)", "5"),
        (r"\lim_{x\to0}\lim_{x\to0}\infty xd/dx", "x"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}\{d/dx", r"\vec{x}\mod 0"),
        ("(" * 5000 + "1" + ")" * 5000, "2"),
    ],
)
def test_what_sympy_raises_over_is_not_equal(answer: str, gold: str) -> None:
    assert not paper_equal(answer, gold)
    assert not paper_equal(gold, answer)


@given(SMALL, SMALL, SMALL.filter(bool))
def test_polynomials(a: int, b: int, wrong: int) -> None:
    factors = f"(x+{a})(x+{b})".replace("+-", "-")
    expanded = f"x^2+{a + b}x+{a * b}".replace("+-", "-")
    assert paper_equal(factors, expanded)
    assert not paper_equal(factors, f"{expanded}+{wrong}".replace("+-", "-"))


@pytest.mark.parametrize("text", ["", "and", "two three", "ten one", "twenty ten", "red", "x" * 99])
def test_no_number_in_words(text: str) -> None:
    assert number_in_words(text) is None

"""The answer is the last closed box, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.answers import extract_answer, why_no_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4}.", "4"),
        (r"\boxed{1} then \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {3}", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{4} and then \boxed{", None),
        (r"\boxed{4} and then \boxed{5", None),
        (r"\boxed{{5}", None),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        (r"\boxed{ends in a backslash\ ", None),
        ("no box", None),
        ("", None),
        (r"$\boxed 4$", "4"),
        (r"\boxed4", "4"),
        (r"\boxed -12.5.", "-12.5"),
        (r"\boxed B.", "B"),
        (r"\fbox{4}", "4"),
        (r"\boxed{1} or \fbox{ 2 }", "2"),
        (r"\boxed{\fbox{4}}", "4"),
        (r"\boxed{4}, as \boxed says", "4"),
        (r"\boxed{4}, so \boxed", None),
        (r"\boxed{4}, so \boxed ", None),
        (r"\boxedness{4}", None),
    ],
)
def test_examples(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r"\boxed{}", "empty"),
        (r"\boxed{4} or \fbox{ }", "empty"),
        (r"\boxed{4} \boxed{5", "not closed"),
        (r"\boxed{4} \boxed", "not closed"),
        ("4", "no box"),
        (r"as \boxed says", "no box"),
    ],
)
def test_why_there_is_none(text: str, why: str) -> None:
    assert extract_answer(text) is None
    assert why in why_no_answer(text)


@given(st.text(alphabet="\\{}boxed f7", max_size=60))
def test_either_an_answer_or_why_there_is_none(text: str) -> None:
    assert (extract_answer(text) is None) is bool(why_no_answer(text))


@given(st.text(), st.text(alphabet="ab 1+", min_size=1).filter(str.strip), st.text())
def test_last_box_wins_whatever_surrounds_it(before: str, content: str, after: str) -> None:
    text = before + r"\boxed{" + content + "}" + after.replace("\\", "")
    assert extract_answer(text) == content.strip()


@given(st.text(alphabet="\\{}boxed f7", max_size=60), st.text(alphabet="}{ab\\ $.4", max_size=40))
def test_text_after_the_last_box_changes_nothing(before: str, after: str) -> None:
    closed = before + r"\boxed{7}"
    assert extract_answer(closed + after) == "7"


@given(st.text(max_size=60), st.text(alphabet="ab{ 1+", max_size=20))
def test_an_unclosed_last_box_is_no_answer(before: str, cut: str) -> None:
    assert extract_answer(before + r"\boxed{5} and \boxed{" + cut) is None


@given(st.text(alphabet="\\{}boxed a", max_size=60))
def test_never_fails(text: str) -> None:
    found = extract_answer(text)
    assert found is None or found in text


def test_is_linear() -> None:
    assert extract_answer(r"\boxed{" * 100_000) is None
    assert extract_answer("{" * 1_000_000 + r"\boxed{1}") == "1"

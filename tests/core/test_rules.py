"""The rules of selection on their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.rules import best, is_selectable
from kvrescue.scoring import distinct, fault_of_score
from kvrescue.types import Candidate, StopReason, Verdict

scores = st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=1)


@given(scores)
def test_best_is_the_first_of_the_highest(given_scores: list[float | None]) -> None:
    place = best(given_scores)
    valid = [score for score in given_scores if score is not None]
    assert place == (given_scores.index(max(valid)) if valid else 0)


@pytest.mark.parametrize(
    ("text", "stop", "flagged", "selectable"),
    [
        ("a\n\n", StopReason.SEPARATOR, False, True),
        ("a", StopReason.LENGTH, False, True),
        ("\n\n", StopReason.SEPARATOR, False, False),
        ("", StopReason.LENGTH, False, False),
        ("\n", StopReason.EOS, False, True),
        ("", StopReason.EOS, False, True),
        ("a\n\n", StopReason.ABORTED, True, False),
    ],
)
def test_who_may_be_chosen(text: str, stop: StopReason, flagged: bool, selectable: bool) -> None:
    verdict = Verdict("d", "r", 1, 1.0, 1.0) if flagged else None
    assert is_selectable(Candidate("p", 0, text, (1,), stop, verdict=verdict)) is selectable


@given(st.lists(st.tuples(st.sampled_from(["a", "ab", "b"]), st.sampled_from([(1,), (2,)]))))
def test_distinct_keeps_order_and_finds_the_way_back(parts: list[tuple[str, tuple[int]]]) -> None:
    pool = [
        Candidate("p", index, text, tokens, StopReason.LENGTH)
        for index, (text, tokens) in enumerate(parts)
    ]
    firsts, where = distinct(pool)
    assert [candidate.index for candidate in firsts] == sorted(c.index for c in firsts)
    assert len({(c.text, c.token_ids) for c in firsts}) == len(firsts)
    for candidate, place in zip(pool, where, strict=True):
        assert (firsts[place].text, firsts[place].token_ids) == (
            candidate.text,
            candidate.token_ids,
        )


@pytest.mark.parametrize("score", [0, 1, 0.0, 1.0, 0.5])
def test_what_counts_as_a_score(score: object) -> None:
    assert fault_of_score(score) is None


@pytest.mark.parametrize(
    ("score", "fault"),
    [
        (None, "not a number"),
        ("0.5", "not a number"),
        (b"1", "not a number"),
        ([], "not a number"),
        (float("nan"), "not finite"),
        (float("inf"), "not finite"),
        (1.0000001, "outside"),
        (-1e-9, "outside"),
    ],
)
def test_what_does_not(score: object, fault: str) -> None:
    assert fault in str(fault_of_score(score))

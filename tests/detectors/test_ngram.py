from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.detectors import NgramDetector, Source, TokenEvent
from kvrescue.errors import ConfigError, DetectorError
from kvrescue.types import Verdict
from tests.detectors.matrix import read

QWEN = Source(vocab_size=151_936, max_step_tokens=512)


def stream(ids: list[int]) -> list[TokenEvent]:
    return [TokenEvent(token, "", 0.0) for token in ids]


def fired(detector: NgramDetector, ids: list[int]) -> Verdict:
    verdict = read(detector, stream(ids))
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("period", [1, 2, 7, 42, 43, 64, 100, 128])
def test_a_loop_is_found_once_span_and_count_are_reached(period: int) -> None:
    head = list(range(1000, 1020))
    verdict = fired(NgramDetector(), head + list(range(period)) * (600 // period))
    span = max(128, 3 * period)
    assert verdict.position == len(head) + span
    assert (verdict.value, verdict.threshold) == (span, span)
    assert f"pattern of {period}," in verdict.reason


def test_a_loop_above_the_largest_period_is_missed() -> None:
    assert read(NgramDetector(), stream(list(range(129)) * 8)) is None


def test_one_wrong_token_starts_the_count_again() -> None:
    pattern = list(range(10))
    verdict = fired(NgramDetector(), pattern * 12 + [99] + pattern * 20)
    assert verdict.position == 120 + 1 + 128


def test_the_loop_may_start_anywhere_in_its_pattern() -> None:
    pattern = [5, 5, 5, 6]
    assert fired(NgramDetector(), [9, 5, 6, *pattern * 50]).position == 1 + 128


def test_a_run_of_one_token_is_as_long_as_the_span() -> None:
    detector = NgramDetector(min_count=4, min_span=60)
    assert read(detector, stream([7] * 59)) is None
    assert "pattern of 1," in fired(detector, [7] * 60).reason


def test_a_run_is_not_a_pattern_of_two() -> None:
    detector = NgramDetector(min_period=2)
    assert read(detector, stream([7] * 600)) is None
    assert "pattern of 2," in fired(detector, [7, 8] * 300).reason


def test_decimals_can_be_exempted_by_their_period() -> None:
    digits = [1, 4, 2, 8, 5, 7] * 100
    assert "pattern of 6," in fired(NgramDetector(), digits).reason
    assert read(NgramDetector(min_period=7), stream(digits)) is None


def test_a_long_run_inside_a_pattern_does_not_exempt_the_pattern() -> None:
    pattern = [7] * 30 + [8]
    verdict = fired(NgramDetector(min_period=2), pattern * 20)
    assert "pattern of 31," in verdict.reason


@given(
    ids=st.lists(st.integers(0, 1), max_size=60),
    period=st.integers(1, 6),
    count=st.integers(2, 4),
    span=st.integers(1, 20),
)
@settings(max_examples=150)
def test_a_flagged_tail_is_what_the_verdict_says(
    ids: list[int], period: int, count: int, span: int
) -> None:
    detector = NgramDetector(max_period=period, min_count=count, min_span=span)
    verdict = read(detector, stream(ids))
    if verdict is not None:
        tail = ids[verdict.position - int(verdict.value) : verdict.position]
        assert any(tail[p:] == tail[:-p] and len(tail) >= count * p for p in range(1, period + 1))
        assert len(tail) >= span


def test_memory_is_bounded_by_the_largest_period() -> None:
    state = NgramDetector(max_period=16).start()
    generator = random.Random(3)
    for _ in range(2_000):
        state.update(TokenEvent(generator.randrange(100_000), "", 0.0))
        assert len(state._places) <= 16  # type: ignore[attr-defined]
        assert sum(map(len, state._places.values())) <= 16  # type: ignore[attr-defined]
        assert len(state._matches) <= 16  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({"min_span": 513}, 513), ({"min_period": 65, "min_count": 8}, 520)],
)
def test_a_span_beyond_the_step_is_refused(options: dict[str, int], tokens: int) -> None:
    with pytest.raises(DetectorError, match=f"need {tokens} tokens"):
        NgramDetector(**options).check(QWEN)


def test_the_last_token_of_a_step_is_soon_enough() -> None:
    NgramDetector(min_span=512).check(QWEN)


def test_the_defaults_fit_the_papers_step_and_reach_every_period_in_it() -> None:
    detector = NgramDetector()
    detector.check(QWEN)
    assert detector.required_span(detector.max_period) <= QWEN.max_step_tokens


@pytest.mark.parametrize(
    "options",
    [
        {"min_period": 0},
        {"max_period": 0},
        {"min_count": 1},
        {"min_span": 0},
        {"min_count": 2.5},
        {"period": 4},
    ],
)
def test_nonsense_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        NgramDetector(**options)


def test_periods_out_of_order_are_refused() -> None:
    with pytest.raises(DetectorError, match="min_period 9"):
        NgramDetector(min_period=9, max_period=8)

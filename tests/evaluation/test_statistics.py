"""Intervals and recovery, against scipy and by their laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from kvrescue.evaluation.statistics import recovery, recovery_interval, wilson_interval


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    trials = draw(st.integers(1, 500))
    return draw(st.integers(0, trials)), trials


@given(counts(), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_equals_scipy(count: tuple[int, int], level: float) -> None:
    expected = binomtest(*count).proportion_ci(level, method="wilson")
    assert wilson_interval(*count, level) == pytest.approx((expected.low, expected.high))


@given(counts())
def test_wilson_holds_the_share(count: tuple[int, int]) -> None:
    low, high = wilson_interval(*count)
    assert 0.0 <= low <= count[0] / count[1] <= high <= 1.0


def test_wilson_without_trials_and_with_too_many_successes() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson_interval(3, 2)


@pytest.mark.parametrize(
    ("full", "evicted", "rescued", "expected"),
    [(0.9, 0.1, 0.9, 1.0), (0.9, 0.1, 0.5, 0.5), (0.9, 0.1, 0.1, 0.0), (0.9, 0.5, 0.3, -0.5)],
)
def test_recovery(full: float, evicted: float, rescued: float, expected: float) -> None:
    assert recovery(full, evicted, rescued) == pytest.approx(expected)


@pytest.mark.parametrize("evicted", [0.5, 0.7])
def test_nothing_to_recover(evicted: float) -> None:
    assert recovery(0.5, evicted, 0.9) is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=5, max_size=40))
def test_interval_of_full_recovery_is_a_point(problems: list[tuple[bool, bool]]) -> None:
    full = [True] * len(problems) + [f for f, _ in problems]
    evicted = [False] * len(problems) + [e for _, e in problems]
    found = recovery_interval(full, evicted, full)
    if found is not None:
        assert found == pytest.approx((1.0, 1.0))


def test_interval_holds_the_value_and_is_deterministic() -> None:
    full, evicted = [True] * 95 + [False] * 5, [False] * 90 + [True] * 10
    rescued = [True] * 85 + [False] * 15
    found = recovery_interval(full, evicted, rescued)
    assert found is not None
    assert found[0] < (0.85 - 0.10) / (0.95 - 0.10) < found[1]
    assert found == recovery_interval(full, evicted, rescued)


def test_no_interval_when_eviction_often_loses_nothing() -> None:
    assert recovery_interval([True, False], [False, False], [True, True]) is None
    assert recovery_interval([], [], []) is None

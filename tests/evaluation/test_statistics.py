"""Intervals and recovery, against scipy and by their laws."""

from __future__ import annotations

from random import Random
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from kvrescue.evaluation.statistics import (
    bootstrap_interval,
    clustered_interval,
    recovery,
    recovery_interval,
    wilson_interval,
)


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


outcomes = st.lists(st.booleans(), min_size=1, max_size=60)
clusters = st.lists(
    st.integers(1, 5).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))),
    min_size=1,
    max_size=40,
)


@given(outcomes)
def test_clusters_of_one_are_wilsons(right: list[bool]) -> None:
    found = clustered_interval((int(one), 1) for one in right)
    low, high = wilson_interval(sum(right), len(right))
    assert low - 1e-9 <= found[0]
    assert found[1] <= high + 1e-9
    assert found == pytest.approx((low, high), abs=1e-9)


@given(outcomes, st.integers(2, 5))
def test_repeating_every_answer_tells_nothing_new(right: list[bool], seeds: int) -> None:
    found = clustered_interval((seeds * one, seeds) for one in right)
    assert found == pytest.approx(wilson_interval(sum(right), len(right)), abs=1e-9)


@given(clusters)
def test_clusters_lie_between_few_and_many_trials(pairs: list[tuple[int, int]]) -> None:
    low, high = clustered_interval(pairs)
    share = sum(right for right, _ in pairs) / sum(trials for _, trials in pairs)
    assert 0 <= low <= share <= high <= 1
    assert (low, high) == clustered_interval(reversed(pairs))
    pooled = wilson_interval(sum(r for r, _ in pairs), sum(t for _, t in pairs))
    assert low <= pooled[0] + 1e-9
    assert pooled[1] - 1e-9 <= high


def test_clusters_without_trials_and_with_too_many_successes() -> None:
    assert clustered_interval([]) == clustered_interval([(0, 0)]) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        clustered_interval([(3, 2)])


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30), st.randoms())
def test_bootstrap_of_a_mean(values: list[float], random: Random) -> None:
    rows = [[value] for value in values]
    found = bootstrap_interval(rows, lambda sums: sums[0] / len(rows))
    assert found is not None
    assert min(values) - 1e-9 <= found[0] <= found[1] <= max(values) + 1e-9
    random.shuffle(rows)
    assert bootstrap_interval(rows, lambda sums: sums[0] / len(rows)) == found


def test_bootstrap_agrees_with_the_normal_approximation() -> None:
    values = [float(i % 10) for i in range(400)]
    found = bootstrap_interval([[v] for v in values], lambda sums: sums[0] / len(values))
    assert found is not None
    half = 1.96 * stdev(values) / len(values) ** 0.5
    assert found == pytest.approx((4.5 - half, 4.5 + half), abs=0.1 * half)


def test_bootstrap_of_what_is_seldom_defined() -> None:
    rows = [[0.0], [0.0], [1.0]]
    assert bootstrap_interval(rows, lambda sums: 1.0 if sums[0] else None) is None
    assert bootstrap_interval([[1.0]], lambda sums: sums[0]) is None

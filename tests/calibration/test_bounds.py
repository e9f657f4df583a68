"""Exact bounds: known values, the law that defines them, and honesty about problems."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from kvrescue.calibration.bounds import (
    LEVEL,
    Rate,
    least_trials,
    lower_bound,
    most_failures,
    upper_bound,
)

trials_and_failures = st.integers(1, 400).flatmap(
    lambda trials: st.tuples(st.just(trials), st.integers(0, trials))
)


def at_most(failures: int, trials: int, share: Fraction) -> Fraction:
    """P(X <= failures) of a binomial, exactly."""
    return sum(
        (
            math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
            for k in range(failures + 1)
        ),
        Fraction(0),
    )


@given(st.integers(1, 25).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_the_bound_is_where_the_binomial_tail_is_one_in_twenty(pair: tuple[int, int]) -> None:
    trials, failures = pair
    bound = upper_bound(failures, trials)
    assert float(at_most(failures, trials, Fraction(bound))) == pytest.approx(1 - LEVEL, rel=1e-9)


@given(trials_and_failures)
def test_scipys_exact_interval_is_the_same(pair: tuple[int, int]) -> None:
    trials, failures = pair
    less = binomtest(failures, trials, alternative="less").proportion_ci(LEVEL, "exact")
    more = binomtest(failures, trials, alternative="greater").proportion_ci(LEVEL, "exact")
    assert upper_bound(failures, trials) == pytest.approx(less.high, abs=1e-12)
    assert lower_bound(failures, trials) == pytest.approx(more.low, abs=1e-12)


def test_known_values() -> None:
    # Without a failure: 1 - 0.05^(1/n). One of ten: tables of Clopper and Pearson.
    assert upper_bound(0, 10) == pytest.approx(1 - 0.05**0.1)
    assert upper_bound(1, 10) == pytest.approx(0.3941633, abs=1e-7)
    assert lower_bound(1, 10) == pytest.approx(1 - 0.95**0.1)
    assert upper_bound(0, 0) == 1.0
    assert lower_bound(0, 0) == 0.0
    assert least_trials(0.01) == 299  # the rule of three, exactly
    assert least_trials(0.05) == 59
    assert least_trials(0.1) == 29


@given(st.floats(0.002, 0.5))
def test_so_many_trials_are_needed_and_no_fewer(target: float) -> None:
    needed = least_trials(target)
    assert upper_bound(0, needed) <= target
    assert needed == 1 or upper_bound(0, needed - 1) > target


@given(st.integers(0, 500), st.floats(0.005, 0.5))
def test_so_many_failures_are_allowed_and_no_more(trials: int, target: float) -> None:
    most = most_failures(trials, target)
    if most is None:
        assert trials < least_trials(target)
    else:
        assert upper_bound(most, trials) <= target < upper_bound(most + 1, trials)


pairs = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60)


@given(pairs, st.randoms(use_true_random=False))
def test_a_rate_depends_on_no_order(found: list[tuple[str, bool]], shuffler: random.Random) -> None:
    shuffled = found.copy()
    shuffler.shuffle(shuffled)
    assert Rate.of(shuffled) == Rate.of(found)


@given(pairs)
def test_a_rates_bounds_enclose_it_and_count_problems(found: list[tuple[str, bool]]) -> None:
    rate = Rate.of(found)
    assert rate.candidates == len(found)
    assert rate.problems == len({problem for problem, _ in found})
    assert rate.hit == len({problem for problem, gone in found if gone})
    if rate.share is not None:
        assert rate.low <= rate.share + 1e-12
        assert rate.share <= rate.high + 1e-12
        assert rate.high >= upper_bound(0, rate.problems)


@given(pairs, st.integers(2, 9))
def test_more_candidates_of_the_same_problems_promise_nothing_more(
    found: list[tuple[str, bool]], times: int
) -> None:
    one, many = Rate.of(found), Rate.of(found * times)
    assert (one.share, one.low, one.high) == pytest.approx((many.share, many.low, many.high))


@pytest.mark.parametrize("alike", [True, False], ids=["all or nothing", "independent"])
def test_the_bound_holds_as_often_as_it_says(alike: bool) -> None:
    """Problems whose candidates share one fate are the worst case; a bound that took candidates for
    trials would fail it in every second draw."""
    draw, truth, held = random.Random(5), 0.1, 0
    for _ in range(300):
        found = []
        for problem in range(40):
            fate = draw.random() < truth
            fates = [fate if alike else draw.random() < truth for _ in range(8)]
            found += [(str(problem), one) for one in fates]
        held += Rate.of(found).high >= truth
    assert held / 300 >= 0.92  # 0.95 less three standard errors

"""Laws of the choice of a threshold, on made-up values."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.calibration.bounds import Rate, least_trials, upper_bound
from kvrescue.calibration.choosing import Value, choose, halves
from kvrescue.detectors import Detector, EntropyDetector, GzipDetector, NgramDetector
from kvrescue.errors import CalibrationError
from tests.calibration.parts import DETECTORS, values

every_detector = pytest.mark.parametrize("detector", DETECTORS.values(), ids=DETECTORS.keys())
TARGETS = st.sampled_from([0.15, 0.2, 0.3, 0.4, 0.5])


def rate(detector: Detector, found: list[Value], threshold: float) -> Rate:
    beyond = detector.known_cutoff.beyond
    return Rate.of((problem, beyond(v, threshold)) for problem, v in found if v is not None)


def caught(detector: Detector, found: list[Value], threshold: float) -> int:
    beyond = detector.known_cutoff.beyond
    return sum(v is not None and beyond(v, threshold) for _, v in found)


def chosen(detector: Detector, good: list[Value], bad: list[Value], target: float) -> float | None:
    try:
        return choose(detector, good, bad, target)
    except CalibrationError:
        return None


@every_detector
@given(data=st.data(), target=TARGETS)
@settings(max_examples=100)
def test_the_bound_is_met_and_nothing_admissible_catches_more(
    detector: Detector, data: st.DataObject, target: float
) -> None:
    good = data.draw(values(detector, "p"))
    bad = data.draw(values(detector, "q", most=20))
    threshold = chosen(detector, good, bad, target)
    severity = detector.known_cutoff.severity
    measured = [v for _, v in (*good, *bad) if v is not None]
    # Every division of the values that some threshold makes, with a legal threshold for it.
    rivals = []
    for low, high in pairwise(sorted(set(measured))):
        cut = high if detector.known_cutoff.inclusive else (low + high) / 2
        if isinstance(detector, NgramDetector):
            cut = int(cut)
        if 0 < cut <= (1 if isinstance(detector, GzipDetector) else 1e9):
            rivals.append(cut)
    admissible = [cut for cut in rivals if rate(detector, good, cut).high <= target]
    best = max((caught(detector, bad, cut) for cut in admissible), default=0)
    if threshold is None:
        assert best == 0
        return
    assert detector.at(threshold).threshold_now == threshold
    assert rate(detector, good, threshold).high <= target
    count = caught(detector, bad, threshold)
    assert count >= max(best, 1)
    # The least severe of those that catch as many: a milder division would lose one of them.
    last = min(
        severity(v)
        for _, v in bad
        if (v is not None and severity(v) > severity(threshold))
        or (v == threshold and detector.known_cutoff.inclusive)
    )
    assert not any(severity(threshold) < severity(v) < last for v in measured)


@every_detector
@given(data=st.data())
@settings(max_examples=60)
def test_a_higher_target_is_never_milder(detector: Detector, data: st.DataObject) -> None:
    good = data.draw(values(detector, "p"))
    bad = data.draw(values(detector, "q", most=20))
    found = [chosen(detector, good, bad, target) for target in (0.15, 0.25, 0.35, 0.5)]
    known = [detector.known_cutoff.severity(threshold) for threshold in found if threshold]
    assert known == sorted(known, reverse=True)
    first = next((place for place, threshold in enumerate(found) if threshold), len(found))
    assert all(threshold is not None for threshold in found[first:])


@every_detector
@given(data=st.data(), target=TARGETS, shuffler=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_order_and_names_do_not_matter(
    detector: Detector, data: st.DataObject, target: float, shuffler: random.Random
) -> None:
    good = data.draw(values(detector, "p"))
    bad = data.draw(values(detector, "q", most=20))
    shuffled, others = good.copy(), [(f"another {problem}", v) for problem, v in bad]
    shuffler.shuffle(shuffled)
    shuffler.shuffle(others)
    renamed = [(f"renamed {problem}", v) for problem, v in shuffled]
    assert chosen(detector, renamed, others, target) == chosen(detector, good, bad, target)


@given(st.integers(0, 100))
def test_too_few_problems_are_refused_with_the_number_that_would_do(count: int) -> None:
    good: list[Value] = [(f"p{i}", 1.0) for i in range(count) for _ in range(50)]
    if count >= least_trials(0.05):
        assert 1.0 <= choose(EntropyDetector(), good, [("q", 5.0)], 0.05) < 5.0
    else:
        with pytest.raises(CalibrationError, match=rf"{count} problems .* needs 59 at least"):
            choose(EntropyDetector(), good, [("q", 5.0)], 0.05)
    assert (upper_bound(0, count) <= 0.05) == (count >= 59)


def test_candidates_that_are_too_short_are_no_evidence() -> None:
    good: list[Value] = [(f"p{i}", None) for i in range(1000)]
    with pytest.raises(CalibrationError, match="come from 0 problems"):
        choose(EntropyDetector(), good, [("q", 5.0)], 0.05)


def test_a_threshold_that_would_catch_nothing_is_not_proposed() -> None:
    good: list[Value] = [(f"p{i}", 3.0) for i in range(100)]
    with pytest.raises(CalibrationError, match="aborts any of the 2 degenerate candidates"):
        choose(EntropyDetector(), good, [("q", 2.0), ("r", None)], 0.05)


def test_a_threshold_is_as_short_as_the_gap_allows() -> None:
    good: list[Value] = [(f"p{i}", 1.23456) for i in range(100)]
    assert choose(EntropyDetector(), good, [("q", 2.9)], 0.05) == 2.0
    assert choose(EntropyDetector(), good, [("q", 1.2346)], 0.05) == 1.23458
    low: list[Value] = [(f"p{i}", 0.4) for i in range(100)]
    assert choose(GzipDetector(), low, [("q", 0.2)], 0.05) == 0.3
    spans: list[Value] = [(f"p{i}", 6.0) for i in range(100)]
    assert choose(NgramDetector(), spans, [("q", 7.0)], 0.05) == 7


def test_what_an_option_cannot_be_is_not_proposed() -> None:
    """A gzip threshold is at most 1: what compresses worse cannot be caught."""
    good: list[Value] = [(f"p{i}", 1.4) for i in range(100)]
    bad: list[Value] = [("q", 1.2), ("r", 1.1), ("s", 0.5)]
    assert 0.5 < choose(GzipDetector(), good, bad, 0.05) <= 1


names = st.sets(st.integers(0, 200).map(str), max_size=60)


@given(names, names, st.integers(0, 5))
def test_halves_are_equal_and_depend_on_names_alone(
    good: set[str], bad: set[str], seed: int
) -> None:
    chosen_ = halves(sorted(good), sorted(bad), seed)
    assert halves(sorted(good, reverse=True), sorted(bad, reverse=True), seed) == chosen_
    assert chosen_ <= good | bad
    for group in (good, bad - good):
        assert len(chosen_ & group) == (len(group) + 1) // 2


def test_another_seed_draws_another_half() -> None:
    problems = [str(i) for i in range(40)]
    assert len({frozenset(halves(problems, (), seed)) for seed in range(5)}) > 1

"""A threshold chosen from measured values, so that few healthy candidates are aborted.

All is a function of sets: the order of candidates and of problems does not matter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from kvrescue.calibration.bounds import least_trials, most_failures, whole
from kvrescue.detectors.base import Detector
from kvrescue.errors import CalibrationError, ConfigError

__all__ = ["Value", "choose", "halves"]

Value: TypeAlias = tuple[str, float | None]
"""A candidate's problem and what a detector measures of it."""


def choose(
    detector: Detector, healthy: Sequence[Value], degenerate: Sequence[Value], target: float
) -> float:
    """The threshold that catches most, of those that keep false aborts below the target.

    Admissible are thresholds whose exact upper bound on the share of the healthy candidates that
    they abort is at most `target`. Candidates that are too short to be measured are no evidence
    and left out. Of the admissible thresholds the one that aborts most degenerate candidates is
    taken, and of those that abort the same the least severe; it stands in the middle of the gap
    between the last value that it aborts and the next one that it lets pass, rounded to as few
    digits as the gap allows.

    Args:
        detector: with the other options that the values were measured with.
        healthy: values of candidates that must not be aborted.
        degenerate: values of candidates that should be.
        target: the highest share of healthy candidates that may be aborted, in (0, 0.5].

    Raises:
        CalibrationError: there is too little data, or no admissible threshold catches anything.
    """
    severity = detector.known_cutoff.severity
    known = sorted((severity(v), problem) for problem, v in healthy if v is not None)
    problems = {problem for _, problem in known}
    allowed = most_failures(len(problems), target)
    if allowed is None:
        raise CalibrationError(
            f"healthy candidates that are long enough to be judged come from {len(problems)} "
            f"problems of the half that chooses; a bound of {target:.3g} needs "
            f"{least_trials(target)} at least, and as many to measure it with"
        )
    limit = _severest_that_passes(known, allowed)
    by_severity = {severity(v): v for _, v in (*healthy, *degenerate) if v is not None}
    wanted = {severity(v) for _, v in degenerate if v is not None}
    passes = limit
    for place in sorted(by_severity):  # the least severe that is aborted catches most
        if place > limit and place in wanted:
            found = _between(detector, by_severity[passes], by_severity[place])
            if found is not None:
                return found
        passes = max(passes, place)
    raise CalibrationError(
        f"no threshold that keeps false aborts below {target:.3g} aborts any of the "
        f"{len(degenerate)} degenerate candidates of the half that chooses"
    )


def _severest_that_passes(known: Sequence[tuple[float, str]], allowed: int) -> float:
    """The least severe healthy value that no admissible threshold may abort."""
    sizes: dict[str, int] = {}
    for _, problem in known:
        sizes[problem] = sizes.get(problem, 0) + 1
    shares: list[float] = []
    for value, group in groupby(reversed(known), key=lambda pair: pair[0]):
        shares += [1 / sizes[problem] for _, problem in group]
        if whole(math.fsum(shares)) > allowed:
            passes: float = value
            return passes
    raise AssertionError("a target below 1 lets no threshold abort everything")


def _between(detector: Detector, passes: float, aborted: float) -> float | None:
    """The shortest number between two values that divides them; None: the option cannot be any."""
    beyond = detector.known_cutoff.beyond
    for threshold in _rounded(detector, (passes + aborted) / 2):
        if beyond(aborted, threshold) and not beyond(passes, threshold):
            try:
                detector.at(threshold)
            except ConfigError:
                continue
            return threshold
    return None


def _rounded(detector: Detector, middle: float) -> Iterator[float]:
    """A number with one digit, with two, and so on; whole where the option is."""
    field = type(detector).model_fields[detector.known_cutoff.option]
    for digits in range(1, 18):
        number = float(f"{middle:.{digits}g}")
        if field.annotation is int:
            yield from (math.floor(number), math.ceil(number))
        else:
            yield number


def halves(healthy: Collection[str], others: Collection[str], seed: int) -> set[str]:
    """The problems that choose; the rest measure.

    A problem's place depends on its name and the seed alone, within those with healthy candidates
    and within the others, so that both halves have as many of each (or one more to choose with).
    """
    chosen: set[str] = set()
    for group in (set(healthy), set(others) - set(healthy)):
        drawn = sorted(group, key=lambda problem: (_draw(problem, seed), problem))
        chosen |= set(drawn[: (len(drawn) + 1) // 2])
    return chosen


def _draw(problem: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{problem}".encode(), digest_size=8).digest()

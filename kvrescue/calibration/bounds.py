"""Exact bounds of a share, with one trial for every problem.

Candidates of one problem are not independent: a problem whose honest solution repeats itself makes
all of its candidates look alike. How much alike cannot be measured where it matters, in a tail that
holds a handful of them, so nothing is assumed: each problem is one trial, whose outcome is the
share of its candidates. The sum of the shares, rounded up to whole problems (down for a lower
bound), goes into Clopper and Pearson's bound. More candidates of a problem make its share more
exact, never the problems more numerous.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from kvrescue.options import Options
from kvrescue.registry import missing_package

__all__ = ["LEVEL", "Rate", "least_trials", "lower_bound", "most_failures", "upper_bound"]

LEVEL: Final = 0.95
"""Of every bound, which is one-sided."""

_ROUNDING: Final = 1e-9
"""Sums of shares are whole where they would be without floating point."""


class Rate(Options):
    """How many candidates a threshold aborts."""

    candidates: int
    """That were measured."""
    aborted: int
    """Of them beyond the threshold."""
    problems: int
    """Whose candidates they are."""
    hit: int
    """Those with an aborted candidate."""
    share: float | None
    """Mean over problems of the share of their candidates; None without any."""
    low: float
    """Exact lower bound of the share at 95 %, by problems."""
    high: float
    """Exact upper bound."""

    @classmethod
    def of(cls, aborted: Iterable[tuple[str, bool]]) -> Rate:
        """From one pair for each candidate: its problem, and whether it is aborted."""
        counts: dict[str, list[int]] = {}
        for problem, gone in aborted:
            count = counts.setdefault(problem, [0, 0])
            count[0] += gone
            count[1] += 1
        return cls.of_counts(counts)

    @classmethod
    def of_counts(cls, counts: Mapping[str, Iterable[int]]) -> Rate:
        """From aborted and all candidates of every problem."""
        pairs = [(gone, of) for gone, of in counts.values() if of]
        total, trials = math.fsum(gone / of for gone, of in pairs), len(pairs)
        return cls(
            candidates=sum(of for _, of in pairs),
            aborted=sum(gone for gone, _ in pairs),
            problems=trials,
            hit=sum(gone > 0 for gone, _ in pairs),
            share=total / trials if trials else None,
            low=lower_bound(math.floor(total + _ROUNDING), trials),
            high=upper_bound(whole(total), trials),
        )


def whole(total: float) -> int:
    """A sum of shares as whole problems, rounded up."""
    return max(0, math.ceil(total - _ROUNDING))


def upper_bound(failures: int, trials: int, level: float = LEVEL) -> float:
    """Clopper and Pearson's one-sided upper bound of a proportion; 1 without trials."""
    _check(failures, trials)
    if failures == trials:
        return 1.0
    return _quantile(level, failures + 1, trials - failures)


def lower_bound(successes: int, trials: int, level: float = LEVEL) -> float:
    """Clopper and Pearson's one-sided lower bound of a proportion; 0 without trials."""
    _check(successes, trials)
    if successes == 0:
        return 0.0
    return _quantile(1 - level, successes, trials - successes + 1)


def least_trials(target: float, level: float = LEVEL) -> int:
    """So many trials without a failure are needed for an upper bound of at most `target`."""
    found = max(1, math.ceil(math.log1p(-level) / math.log1p(-target)))
    while upper_bound(0, found, level) > target:  # the logarithms are rounded
        found += 1
    return found


def most_failures(trials: int, target: float, level: float = LEVEL) -> int | None:
    """So many failures keep the upper bound at or below `target`; None: not even none do."""
    if trials == 0 or upper_bound(0, trials, level) > target:
        return None
    low, high = 0, trials
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if upper_bound(middle, trials, level) <= target else (low, middle)
        )
    return low


def _check(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} trials")


def _quantile(share: float, a: float, b: float) -> float:
    """Of the beta distribution."""
    try:
        from scipy.stats import beta
    except ModuleNotFoundError as error:
        raise missing_package("a calibration's exact bounds", error) from error
    return float(beta.ppf(share, a, b))

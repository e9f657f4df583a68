"""Statistics of the reports: intervals of proportions, of means and of quotients, and recovery.

Wilson's interval needs no package (`statistics` has the normal quantile), is never wider than
[0, 1] and stays honest at 0 and 100 %, where the tables of this project live. A bootstrap would
have no width there; it is used for what is no proportion: means, differences, quotients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "LEAST_GAP",
    "bootstrap_interval",
    "clustered_interval",
    "recovery",
    "recovery_interval",
    "wilson_interval",
]

LEAST_GAP: Final = 10
"""Points between full KV and evicted; below, recovery would be a quotient of two small numbers."""

_RESAMPLES: Final = 2000
_DEFINED: Final = 0.95
"""Share of the resamples that must give a value."""


def wilson_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion; (0, 1) without trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    return _wilson(successes / trials, trials, level)


def clustered_interval(
    clusters: Iterable[tuple[int, int]], level: float = 0.95
) -> tuple[float, float]:
    """Wilson's interval of a proportion whose trials come in clusters; (0, 1) without trials.

    Answers to one problem under several seeds are alike: a hard problem stays hard. Pooled trials
    would promise too much, so they are counted as fewer, by the design effect (the variance of the
    proportion over clusters, divided by the binomial one), but never as fewer than there are
    clusters. With one trial in every cluster this is `wilson_interval`.

    Args:
        clusters: (successes, trials) of every cluster.
        level: of the interval.
    """
    pairs = [(right, trials) for right, trials in clusters if trials]
    for right, trials in pairs:
        if not 0 <= right <= trials:
            raise ValueError(f"{right} successes of {trials} trials")
    if not pairs:
        return 0.0, 1.0
    count, whole = len(pairs), sum(trials for _, trials in pairs)
    share = sum(right for right, _ in pairs) / whole
    effective = float(count)
    if count > 1 and 0 < share < 1:
        spread = math.fsum((right - share * trials) ** 2 for right, trials in pairs)
        if spread > 0:
            effective = share * (1 - share) * whole**2 / spread * (count - 1) / count
        else:
            effective = float(whole)
    return _wilson(share, min(max(effective, count), whole), level)


def _wilson(share: float, trials: float, level: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(0.5 + level / 2)
    shrink = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    # Rounding must not push a bound past the share itself, at 0 and 1 least of all.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def bootstrap_interval(
    rows: Sequence[Sequence[float]],
    statistic: Callable[[Sequence[float]], float | None],
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Percentile bootstrap of a function of column sums, rows (problems) drawn with replacement.

    Means, differences of means, quotients and what is made of them are such functions.

    Args:
        rows: one per problem, all of one length. Their order does not matter.
        statistic: takes the sums of the columns; None where it is not defined.
        level: of the interval.
        seed: of the resamples.

    Returns:
        None with fewer than two rows, or when a twentieth or more of the resamples give none.
    """
    if len(rows) < 2:
        return None
    sums = _draws(len(rows), seed) @ sorted(map(tuple, rows))
    found = (statistic(one) for one in sums.tolist())
    values = sorted(value for value in found if value is not None)
    if len(values) < _DEFINED * _RESAMPLES:
        return None
    tail = (1 - level) / 2
    last = len(values) - 1
    return values[round(tail * last)], values[round((1 - tail) * last)]


@lru_cache(maxsize=8)
def _draws(count: int, seed: int) -> NDArray[np.float64]:
    """How often each of `count` rows is drawn, resample by resample."""
    import numpy as np

    draws = np.random.default_rng(seed).multinomial(count, [1 / count] * count, size=_RESAMPLES)
    return draws.astype(np.float64)


def recovery(full: float, evicted: float, rescued: float) -> float | None:
    """(A_kvr - A_evict) / (A_full - A_evict): the part of the loss that was won back.

    None when eviction lost nothing, so that there is nothing to win back.
    """
    return (rescued - evicted) / (full - evicted) if full > evicted else None


def recovery_interval(
    full: Sequence[float],
    evicted: Sequence[float],
    rescued: Sequence[float],
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Bootstrap of `recovery` over problems, which the three runs share.

    Args:
        full: right or wrong for every problem, or the share of the seeds that were right.
        evicted: the same for the evicted base.
        rescued: the same for KV-Rescue.
        level: of the interval.
        seed: of the resamples.

    Returns:
        None when a twentieth or more of the resamples lost nothing to eviction.
    """
    rows = list(zip(full, evicted, rescued, strict=True))
    return bootstrap_interval(rows, lambda sums: recovery(*sums), level, seed)

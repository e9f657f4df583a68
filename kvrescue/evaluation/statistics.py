"""Statistics of the reports: intervals of proportions, and recovery.

Wilson's interval needs no package (`statistics` has the normal quantile), is never wider than
[0, 1] and stays honest at 0 and 100 %, where the tables of this project live.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

__all__ = ["recovery", "recovery_interval", "wilson_interval"]

_RESAMPLES = 2000


def wilson_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion; (0, 1) without trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, shrink = successes / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    # Rounding must not push a bound past the share itself, at 0 and 1 least of all.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def recovery(full: float, evicted: float, rescued: float) -> float | None:
    """(A_kvr - A_evict) / (A_full - A_evict): the part of the loss that was won back.

    None when eviction lost nothing, so that there is nothing to win back.
    """
    return (rescued - evicted) / (full - evicted) if full > evicted else None


def recovery_interval(
    full: Sequence[bool],
    evicted: Sequence[bool],
    rescued: Sequence[bool],
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Percentile bootstrap of `recovery` over problems; the three runs share their problems.

    None when a twentieth or more of the resamples lost nothing to eviction.
    """
    problems = list(zip(full, evicted, rescued, strict=True))
    if not problems:
        return None
    rng = random.Random(seed)
    values: list[float] = []
    for _ in range(_RESAMPLES):
        sums = [sum(column) for column in zip(*rng.choices(problems, k=len(problems)), strict=True)]
        value = recovery(*sums)
        if value is not None:
            values.append(value)
    if len(values) < 0.95 * _RESAMPLES:
        return None
    values.sort()
    tail = (1 - level) / 2
    last = len(values) - 1
    return values[round(tail * last)], values[round((1 - tail) * last)]

"""Plain float64 versions of the formulas, one pair (row, KV head) at a time: slow and obvious."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(values: Array) -> Array:
    shifted = np.exp(values - values.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def similarities(keys: Array, threshold: float | None) -> Array:
    """S with zero diagonal and one exempted entry per row; keys [n, dim]."""
    unit = keys / (np.linalg.norm(keys, axis=-1, keepdims=True) + 1e-8)
    pairs = unit @ unit.T
    np.fill_diagonal(pairs, 0.0)
    if threshold is not None:
        for row in pairs:
            matches = np.flatnonzero(row > threshold)
            row[matches[-1] if len(matches) else 0] = 0.0
    return pairs


def redundancy(keys: Array, threshold: float | None) -> Array:
    return softmax(similarities(keys, threshold).mean(0))


def attention(keys: Array, queries: Array, past: int) -> Array:
    """Mean over queries of the softmax over the past of the group's largest logit.

    keys [n, dim], queries [group, w, dim].
    """
    logits = queries @ keys[:past].T / np.sqrt(keys.shape[-1])
    return softmax(logits.max(0)).mean(0)


def max_pool(values: Array, kernel_size: int) -> Array:
    half = kernel_size // 2
    return np.array([values[max(0, j - half) : j + half + 1].max() for j in range(len(values))])


def rkv(
    keys: Array, queries: Array, window: int, kernel_size: int, lam: float, threshold: float | None
) -> Array:
    past = len(keys) - window
    importance = max_pool(attention(keys, queries, past), kernel_size)
    return lam * importance - (1 - lam) * redundancy(keys, threshold)[:past]


def kept(scores: Array, budget: int, window: int, prefix: int = 0) -> list[int]:
    """Indices that stay for scores [n]; of equal scores the earlier stays."""
    n = len(scores)
    middle = range(prefix, n - window)
    best = sorted(middle, key=lambda j: (-scores[j], j))[:budget]
    return sorted([*range(prefix), *best, *range(n - window, n)])

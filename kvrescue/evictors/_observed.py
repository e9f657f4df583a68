"""Tracked importance: what the last queries said of every entry, remembered with the entry.

For R-KV and SnapKV: the largest logit of the query group for each of the last `observation`
queries. A step adds one product of the keys with the new queries; softmax and mean are then over
the entries that are scored, in O(n * observation).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvrescue.evictors import tensors as ops

if TYPE_CHECKING:
    from kvrescue.evictors.tracking import TrackedCache

__all__ = ["SEEN", "observe", "observed_importance"]

SEEN = "seen"
"""Name of the state: [observation] float32 per entry."""


def observe(cache: TrackedCache, logits: Tensor) -> None:
    """Remember logits [pairs, n, group, observed] of the newest queries, not yet scaled.

    The state is a ring over the queries; their mean does not ask which one is the oldest.
    """
    seen = cache.state[SEEN]
    rows, heads, length, ring = seen.shape
    observed, dim = logits.shape[3], cache.keys.shape[3]
    # One by one: a CPU reduces a short inner axis slowly.
    largest = functools.reduce(torch.maximum, logits.unbind(2)) * (1.0 / math.sqrt(dim))
    largest = largest.view(rows, heads, length, observed)
    places = cache.logical[:, None] - observed + torch.arange(observed, device=seen.device)
    index = (places % ring)[:, None, None, :].expand(-1, heads, length, -1)
    seen.scatter_(3, index, largest)


def observed_importance(seen: Tensor, scored: Tensor) -> Tensor:
    """Mean over the queries of the softmax over the entries at `scored` [pairs, m], [pairs, m].

    seen [pairs, n, observation].
    """
    weights = torch.softmax(ops.rows_at(seen, scored), dim=1)
    return weights @ weights.new_full((weights.shape[2],), 1.0 / weights.shape[2])

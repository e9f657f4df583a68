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


def observe(cache: TrackedCache, products: Tensor, window: int) -> None:
    """Remember what the newest queries say: the last columns of `products` [pairs, n, columns] are
    their products with the keys, query head by query head.

    The state is a ring over the queries; their mean does not ask which one is the oldest. An entry
    is scored once `window` newer ones came, and only the last `observation` queries count then:
    what earlier ones say of it is not needed.
    """
    pairs, length, columns = products.shape
    observed, heads = cache.queries.shape[2], cache.order.shape[1]
    group = cache.queries.shape[1] // heads
    if observed == 0:
        return
    ring = cache.state[SEEN].shape[3]
    seen = cache.state[SEEN].flatten(0, 1).view(pairs, length * ring)
    soon = cache.order.flatten(0, 1)[:, : length - window + ring - 1]
    said = ops.rows_at(products, soon)[:, :, columns - group * observed :]
    said = said.unflatten(2, (group, observed))
    # One by one: a CPU reduces a short inner axis slowly.
    largest = functools.reduce(torch.maximum, said.unbind(2))
    places = cache.logical[:, None] - observed + torch.arange(observed, device=seen.device)
    places = (places % ring).repeat_interleave(heads, 0)
    index = (soon * ring).unsqueeze(2) + places.unsqueeze(1)
    scale = 1.0 / math.sqrt(cache.keys.shape[3])
    seen.scatter_(1, index.flatten(1), largest.mul(scale).flatten(1))


def observed_importance(seen: Tensor, scored: Tensor) -> Tensor:
    """Mean over the queries of the softmax over the entries at `scored` [pairs, m], [pairs, m].

    seen [pairs, n, observation].
    """
    weights = torch.softmax(ops.rows_at(seen, scored), dim=1)
    return weights @ weights.new_full((weights.shape[2],), 1.0 / weights.shape[2])

"""SnapKV after every token in O(n * dim) per head: the keys meet every query once.

On a CPU with numba, `kvrescue.kernels.tracked` does the same in one pass per head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvrescue import kernels
from kvrescue.evictors import tensors as ops
from kvrescue.evictors._observed import SEEN, observe, observed_importance
from kvrescue.evictors.tracking import ScoreTracker, StateField, TrackedCache

if TYPE_CHECKING:
    from kvrescue.evictors.snapkv import SnapKV

__all__ = ["SnapKVTracker"]


class SnapKVTracker(ScoreTracker):
    """Tracks `SnapKV` with its default reduction; needs window >= observation."""

    def __init__(self, evictor: SnapKV) -> None:
        self.window = evictor.window
        self.observation = evictor.observation
        self.kernel_size = evictor.kernel_size
        self.pooling = evictor.pooling

    def compiled(self, device: torch.device) -> bool:
        return kernels.compiled(device)

    def entry_state(self, head_dim: int) -> dict[str, StateField]:
        return {SEEN: StateField((self.observation,), torch.float32)}

    def start(self, cache: TrackedCache) -> None:
        self._observe(cache)

    def score(self, cache: TrackedCache) -> Tensor:
        if self.compiled(cache.keys.device):
            from kvrescue.kernels import tracked

            return tracked.score_snapkv(
                cache.keys,
                cache.queries,
                cache.order,
                cache.logical,
                cache.state[SEEN],
                window=self.window,
                kernel_size=self.kernel_size,
                pooling=self.pooling,
            )
        self._observe(cache)
        order = cache.order.flatten(0, 1)
        past = order.shape[1] - self.window
        seen = observed_importance(cache.state[SEEN].flatten(0, 1), order[:, :past])
        out = cache.keys.new_zeros(order.shape)
        out[:, :past] = ops.pool(seen, self.kernel_size, self.pooling)
        return out.view(cache.order.shape)

    def drop(self, cache: TrackedCache, slots: Tensor, sources: Tensor) -> None:
        """Nothing refers to another entry."""

    def _observe(self, cache: TrackedCache) -> None:
        keys, queries = cache.keys.flatten(0, 1), cache.query_pairs()
        observe(cache, torch.bmm(keys, queries.flatten(1, 2).mT), self.window)

"""H2O: keep the entries that gathered the most attention so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kvrescue.errors import EvictorError
from kvrescue.evictors.base import Evictor, KVSlice

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["H2O"]


class H2O(Evictor):
    """Heavy hitters (the H2O paper): attention mass over all past queries, not only recent ones.

    score_j = mass_j / age_j, where mass_j is the attention entry j received since it was cached
    (`KVSlice.attention`, accumulated by the engine) and age_j the number of queries that could see
    it: newest position - position of j + 1.

    The paper ranks by mass alone (`per_query=False`). While decoding on a full cache that
    freezes: a new entry starts at zero and always loses to the prompt. The mean per query lets it
    compete as soon as it leaves the window.
    """

    kind: ClassVar[str] = "h2o"
    needs_attention: ClassVar[bool] = True
    needs_keys: ClassVar[bool] = False

    per_query: bool = True
    """Divide by the number of queries that could see the entry."""

    def score(self, kv: KVSlice) -> Tensor:
        """Mean (or summed) attention mass, float32 [rows, kv_heads, length].

        Raises `EvictorError` without `KVSlice.attention`, or without `KVSlice.positions` when
        `per_query` is on: physical indices shrink under eviction, so they tell no age.
        """
        import torch

        if kv.attention is None:
            raise EvictorError(
                "evictor 'h2o': KVSlice.attention is None; it needs the attention mass that each "
                "entry received (engines accumulate it when `needs_attention` is set)"
            )
        mass = kv.attention.to(torch.float32)
        if not self.per_query:
            return mass
        if kv.positions is None:
            raise EvictorError(
                "evictor 'h2o': KVSlice.positions is None; give logical positions, or set "
                "per_query=False to rank by the summed mass"
            )
        age = (kv.positions[..., -1:] + 1 - kv.positions).clamp_(min=1)
        return mass / age

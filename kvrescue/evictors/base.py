"""Evictor: scores cached entries; which ones stay is decided here, once, for every method.

The kept set per layer and KV head is: the protected prefix (the prompt, when `protect_prompt`),
the `budget` best-scored entries of the middle, and the `window` most recent ones. Protection is
by partition, never by score, so no tie or extreme score can evict a protected entry.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Evictor", "KVSlice"]


@dataclass(frozen=True, slots=True)
class KVSlice:
    """What an evictor may look at: cached entries in temporal order, position encoding applied.

    `rows` is any batch of independent (layer, sequence) pairs.
    """

    keys: Tensor
    """[rows, kv_heads, length, head_dim]"""
    queries: Tensor
    """[rows, q_heads, observation, head_dim]: the most recent queries, oldest first; query head
    `a` reads KV head `a // (q_heads / kv_heads)`."""
    values: Tensor | None = None
    """[rows, kv_heads, length, head_dim]"""
    lengths: Tensor | None = None
    """[rows] valid leading entries of each row; None means all."""
    positions: Tensor | None = None
    """[rows, kv_heads, length] logical token positions."""
    attention: Tensor | None = None
    """[rows, kv_heads, length] attention mass each entry received since it was cached, summed
    over queries and averaged over the query group; only for `needs_attention` evictors."""
    query_counts: Tensor | None = None
    """[rows] valid trailing queries of each row; None means all."""
    prefix: Tensor | None = None
    """[rows] leading entries that are protected (the prompt); None means none."""


class Evictor(BaseModel, abc.ABC):
    """Options every evictor shares. Authors implement only `score`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str] = ""
    needs_attention: ClassVar[bool] = False
    """Set when `score` reads `KVSlice.attention`: the engine then accumulates it per entry."""
    needs_values: ClassVar[bool] = False

    budget: int = Field(gt=0)
    """B: score-selected entries per layer and KV head."""
    window: int = Field(default=128, ge=0)
    """w: most recent entries, always kept. Physical bound B' = B + w."""
    observation: int = Field(default=8, ge=1)
    """Most recent queries that `score` sees."""
    interval: int = Field(default=1, ge=1)
    """Evict when this many entries exceed B'; 1 is the paper's "every step"."""
    protect_prompt: bool = False
    """Keep every prompt entry on top of B and w (the paper evicts the prompt, too)."""

    @property
    def bound(self) -> int:
        """B' = B + w."""
        return self.budget + self.window

    @abc.abstractmethod
    def score(self, kv: KVSlice) -> Tensor:
        """Keep-priority of every entry.

        `kv` is dense here: every row has the same length, queries and prefix (the base class
        groups rows), so implementations never see padding. Returns float32
        [rows, kv_heads, length]; higher stays; values at protected entries are ignored.
        """

    def select(self, kv: KVSlice) -> Tensor:
        """Kept indices [rows, kv_heads, kept] in temporal order; see the package docs."""
        raise NotImplementedError

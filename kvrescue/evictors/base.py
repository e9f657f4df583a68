"""Evictor: scores cached entries; which ones stay is decided here, once, for every method.

The kept set per layer and KV head is: the protected prefix (the prompt, when `protect_prompt`),
the `budget` best-scored entries of the middle, and the `window` most recent ones. Protection is
by partition, never by score, so no tie or extreme score can evict a protected entry.

Importing this module does not import torch.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from pydantic import Field

from kvrescue.errors import EvictorError
from kvrescue.options import Options

if TYPE_CHECKING:
    from torch import Tensor

    from kvrescue.evictors.tracking import ScoreTracker

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


class Evictor(Options, abc.ABC):
    """Options every evictor shares. Authors implement only `score`."""

    kind: ClassVar[str] = ""
    """The name it is registered under (`kind: rkv` in YAML)."""
    needs_attention: ClassVar[bool] = False
    """Set when `score` reads `KVSlice.attention`: the engine then accumulates it per entry."""
    needs_values: ClassVar[bool] = False
    """Set when `score` reads `KVSlice.values`."""
    needs_keys: ClassVar[bool] = True
    """Cleared when `score` asks nothing of the keys but their shape: an engine then spares the
    copy that puts them into temporal order."""
    bounded: ClassVar[bool] = True
    """False when the evictor keeps everything, so that B' bounds nothing (`NoEviction`)."""

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass that overrides `select`: protection and order are proved there once."""
        super().__init_subclass__(**kwargs)
        if "select" in cls.__dict__:
            raise EvictorError(
                f"{cls.__name__} overrides Evictor.select, which is final; implement `score` only"
            )
        if "score" in cls.__dict__ and "tracker" not in cls.__dict__:
            cls.tracker = Evictor.tracker  # type: ignore[method-assign]  # not the parent's scores

    @abc.abstractmethod
    def score(self, kv: KVSlice) -> Tensor:
        """Keep-priority of every entry.

        `kv` is dense here: every row has the same length, queries and prefix (the base class
        groups rows), so implementations never see padding: `lengths` and `query_counts` are
        None. `select` calls it only with more than prefix + `budget` + `window` entries.

        Returns [rows, kv_heads, length] in a floating dtype (float32 is the contract of the
        built-in methods); higher stays. Values at protected entries are ignored; all others must
        be finite: use a large negative number, not -inf, for "drop this first".
        """

    def tracker(self) -> ScoreTracker | None:
        """Incremental scores for engines, if the method knows any; the same scores, only cheaper.

        A subclass with its own `score` does not inherit its parent's tracker.
        """
        return None

    @final
    def select(self, kv: KVSlice) -> Tensor:
        """Indices of the entries that stay, in temporal order.

        Per row and KV head: the first `kv.prefix` entries, the `budget` best-scored of the
        middle, and the `window` newest. Of equal scores the earlier entry stays. A row of at most
        prefix + `bound` entries keeps everything and is not scored.

        Returns int64 [rows, kv_heads, kept] on the device of `kv.keys`; kept is the largest
        count over the rows, and a row that keeps fewer is padded at the end with -1 (this
        happens only when rows differ in `lengths` or `prefix`).

        `lengths`, `prefix` and `query_counts` are read on the host: leave them None when all rows
        are equal (one dense call, one device synchronisation), or give them as CPU tensors.

        Raises `EvictorError` for a malformed slice (rank, head counts, no queries, lengths out of
        range, non-finite data that reached the scores) and for scores of the wrong shape or that
        are not finite.
        """
        from kvrescue.evictors.selection import select

        return select(self, kv)

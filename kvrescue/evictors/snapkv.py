"""SnapKV: keep what the most recent queries attend to."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.evictors.rkv import odd

if TYPE_CHECKING:
    from torch import Tensor

    from kvrescue.evictors.tracking import ScoreTracker

__all__ = ["SnapKV"]


class SnapKV(Evictor):
    """SnapKV, applied while decoding; three references differ in the knobs below.

    score_j = pool(mean over queries of softmax(q . k / sqrt(d)))_j for entries before the window.

    | reference | pooling | kernel_size | reduce | softmax_over |
    |---|---|---|---|---|
    | SnapKV as baseline in the R-KV code (the default) | max | 7 | max | past |
    | kvpress `SnapKVPress` | avg | 5 | mean | all |
    | official SnapKV, per query head (one KV head each) | avg or max | 5 or 7 | - | all |

    The official code sums over queries where this takes the mean: the same order. To run it per
    query head, give `KVSlice.keys` repeated to the query heads.
    """

    kind: ClassVar[str] = "snapkv"

    kernel_size: int = Field(default=7, ge=1)
    """Width of the pooling; odd."""
    pooling: Literal["max", "avg"] = "max"
    """"max" pads with -inf; "avg" pads with zeros and always divides by `kernel_size`."""
    reduce: Literal["max", "mean"] = "max"
    """Over the query group: largest logit before the softmax, or mean weight after it."""
    softmax_over: Literal["past", "all"] = "past"
    """Entries before the window only, or all entries that the query could see."""

    _odd = field_validator("kernel_size")(odd)

    def score(self, kv: KVSlice) -> Tensor:
        """Pooled attention, float32 [rows, kv_heads, length]; 0 for window entries.

        Raises `EvictorError` when the slice holds no entry before the window.
        """
        from kvrescue.evictors import tensors as ops

        past = ops.past_length(self.kind, kv, self.window)

        def score_pairs(keys: Tensor, queries: Tensor, positions: Tensor | None) -> Tensor:
            seen = ops.importance(
                keys,
                queries,
                positions,
                past,
                reduce=self.reduce,
                softmax_over=self.softmax_over,
            )
            return ops.pool(seen, self.kernel_size, self.pooling)

        return ops.score_rows(kv, past, score_pairs)

    def tracker(self) -> ScoreTracker | None:
        """Scores in O(n * dim) per head; None for the variants whose softmax is per query head or
        over all entries, which are scored from scratch."""
        if self.reduce != "max" or self.softmax_over != "past" or self.window < self.observation:
            return None
        from kvrescue.evictors._snapkv_tracker import SnapKVTracker

        return SnapKVTracker(self)

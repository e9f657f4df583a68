"""R-KV's scores from scratch: one function, on torch or by kernels."""

from __future__ import annotations

from torch import Tensor

from kvrescue import kernels
from kvrescue.evictors import tensors as ops
from kvrescue.evictors._redundancy import redundancy
from kvrescue.evictors.base import KVSlice

__all__ = ["rkv_scores"]


def rkv_scores(
    kv: KVSlice, *, past: int, kernel_size: int, lam: float, threshold: float | None
) -> Tensor:
    """float32 [rows, kv_heads, length] scores of the first `past` entries, 0 for the others; see
    `RKV`, of which the options are. `kv` is dense."""
    if kernels.available(kv.keys.device):
        from kvrescue.kernels.rkv import scores

        return scores(
            kv.keys,
            kv.queries,
            kv.positions,
            window=kv.keys.shape[2] - past,
            kernel_size=kernel_size,
            lam=lam,
            threshold=threshold,
        )

    def score_pairs(keys: Tensor, queries: Tensor, positions: Tensor | None) -> Tensor:
        seen = ops.importance(keys, queries, positions, past)
        seen = ops.pool(seen, kernel_size, "max")
        again = redundancy(keys, threshold)[:, :past]
        return seen.mul(lam).sub_(again, alpha=1.0 - lam)

    return ops.score_rows(kv, past, score_pairs)

"""R-KV's scores in four kernels, without a matrix of all pairs.

The formulas are those of `kvrescue.evictors.rkv`; everything is added up in float32, whatever the
dtype of the cache, of which nothing is copied. In between a few numbers per entry are stored:

1. `prepare`: 1 / (|k| + 1e-8) of each key, the sum of the unit keys, and for each query the maximum
   and the sum of its softmax over the past;
2. `match`: each entry's last match and their similarity, from the newest entry on, tile by tile,
   until every entry of the tile has one;
3. `terms`: each entry's mean similarity to the others and the mean attention that it gets;
4. `finish`: softmax of the similarities, max-pool of the attention, and their weighted difference.

Nothing is added up in an order that changes from run to run: the same input gives the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kvrescue.kernels import _rkv as device
from kvrescue.kernels import interpreted
from kvrescue.kernels._launch import on_its_device
from kvrescue.kernels._matches import match_kernel

__all__ = ["Tiles", "scores", "tiles"]

FINISH = 1024
"""Entries that `finish` works on at once, at most."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """What a kernel works on at once."""

    queries: int
    """Observation queries."""
    rows: int
    """Rows of S."""
    columns: int
    """Columns of S."""
    entries: int
    """Entries, where they are compared with queries or looked at one by one."""
    dim: int
    """Numbers of a key: head_dim, rounded up to a power of two."""
    part: int
    """Of these at once, in products of keys with keys."""
    warps: int
    """Of a program, 32 threads each ..."""
    search_warps: int
    """... and where keys are compared with keys."""


def tiles(dtype: torch.dtype, head_dim: int) -> Tiles:
    """The tiles for keys of `dtype`: as large as registers hold (`python -m kvrescue.kernels`)."""
    dim = max(16, triton.next_power_of_2(head_dim))
    side = 32 if dtype == torch.float32 or dim > 128 else 64
    return Tiles(16, side, side, min(side, max(16, 4096 // dim)), dim, min(dim, side), 4, 8)


@on_its_device
def scores(
    keys: Tensor,
    queries: Tensor,
    positions: Tensor | None,
    *,
    window: int,
    kernel_size: int,
    lam: float,
    threshold: float | None,
    lengths: Tensor | None = None,
) -> Tensor:
    """R-KV's score of every entry, as `RKV.score` gives it.

    Args:
        keys: [rows, kv_heads, length, head_dim] float32, bfloat16 or float16, with any strides, in
            temporal order.
        queries: [rows, q_heads, observation, head_dim], oldest first.
        positions: [rows, kv_heads, length] logical positions; read only where the causal mask
            applies (`observation` exceeds `window`).
        window: entries at the end that are not scored; less than `length`.
        kernel_size: width of the max-pool; odd.
        lam: weight of the attention.
        threshold: cosine above which two entries say the same; None exempts nothing.
        lengths: [rows] valid leading entries of each row; None means all. A row of at most `window`
            entries scores 0 everywhere.

    Returns:
        float32 [rows, kv_heads, length]; 0 at entries of the window and beyond the row's length.
    """
    if keys.dtype != queries.dtype or keys.dtype == torch.float64:
        keys, queries = keys.float(), queries.float()
    rows, heads, length, dim = keys.shape
    group, observed = queries.shape[1] // heads, queries.shape[2]
    pairs = rows * heads
    out = keys.new_empty((rows, heads, length), dtype=torch.float32)
    if not out.numel():
        return out
    by = tiles(keys.dtype, dim)
    causal = observed > window
    if not causal:
        positions = None
    per_entry = keys.new_empty((4, pairs, length), dtype=torch.float32)
    inverse, similarity, again, seen = per_entry.unbind(0)
    total = keys.new_empty((pairs, dim), dtype=torch.float32)
    largest, weight = keys.new_empty((2, pairs, observed), dtype=torch.float32).unbind(0)
    places = (0, 0) if positions is None else positions.stride()[:2]
    if positions is not None and positions.stride(2) != 1:
        positions = positions.contiguous()
        places = positions.stride()[:2]
    shape = (length, window, observed, heads, dim, *keys.stride(), *queries.stride(), *places)
    scale = 1.0 / math.sqrt(dim)
    widen = interpreted()
    blocks = {"block_t": by.queries, "block_n": by.entries, "block_d": by.dim}
    device.prepare_kernel[pairs, triton.cdiv(observed, by.queries)](
        keys,
        queries,
        positions,
        lengths,
        inverse,
        total,
        largest,
        weight,
        *shape,
        scale,
        group=group,
        causal=causal,
        widen=widen,
        num_warps=by.warps,
        **blocks,
    )
    match = None
    if threshold is not None:
        match = keys.new_empty((pairs, length), dtype=torch.int32)
        match_kernel[pairs, triton.cdiv(length, by.rows)](
            keys,
            lengths,
            inverse,
            match,
            similarity,
            length,
            heads,
            dim,
            *keys.stride(),
            threshold,
            widen=widen,
            block_m=by.rows,
            block_n=by.columns,
            block_d=by.dim,
            part=by.part,
            num_warps=by.search_warps,
        )
    device.terms_kernel[pairs, triton.cdiv(length, by.entries)](
        keys,
        queries,
        positions,
        lengths,
        inverse,
        total,
        largest,
        weight,
        match,
        similarity,
        again,
        seen,
        *shape,
        scale,
        group=group,
        causal=causal,
        widen=widen,
        block_i=by.entries,
        num_warps=by.warps,
        **blocks,
    )
    device.finish_kernel[(pairs,)](
        again,
        seen,
        lengths,
        out,
        length,
        window,
        kernel_size,
        heads,
        lam,
        block=min(FINISH, triton.next_power_of_2(length)),
        num_warps=4,
    )
    return out

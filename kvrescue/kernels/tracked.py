"""R-KV and SnapKV after every token, compiled by numba for the CPU.

One function does for a pair of row and KV head what a tracker does for all pairs with an operation
of torch after the other: the pair's numbers stay in the nearest cache meanwhile. Pairs are spread
over as many threads as torch has, at most one for 64 pairs. Compiling takes many seconds, once:
numba keeps the result next to the source, or in the user's cache directory.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kvrescue.kernels import _tracked as machine

__all__ = ["drop", "forget", "score_rkv", "score_snapkv"]

_LEAST = 64  # pairs that are worth a thread

Array = np.ndarray[Any, Any]


def score_rkv(
    keys: Tensor,
    queries: Tensor,
    order: Tensor,
    logical: Tensor,
    state: Mapping[str, Tensor],
    *,
    new: int,
    window: int,
    kernel_size: int,
    lam: float,
    threshold: float | None,
) -> Tensor:
    """`RKVTracker.score`; `state` is brought up to date.

    Args:
        keys: [rows, kv_heads, length, head_dim] float32 in any order; the `new` last ones are new.
        queries: [rows, q_heads, observed, head_dim] float32, oldest first.
        order: [rows, kv_heads, length] int64: where the i-th oldest entry lies.
        logical: [rows] int64 tokens that the sequence has seen.
        state: views "inverse", "match" (int32), "similarity" [rows, kv_heads, length], "seen"
            [.., observation] and, per head, "total" [rows, kv_heads, head_dim]; float32.
        new: entries that the state does not know.
        window: entries at the end that are not scored; less than `length`.
        kernel_size: width of the max-pool; odd.
        lam: weight of the attention.
        threshold: cosine above which two entries say the same; None exempts nothing, and the state
            has neither "match" nor "similarity".

    Returns:
        float32 [rows, kv_heads, length] in temporal order.

    Raises:
        ValueError: a tensor of `state` is no view whose lines lie one behind the other.
    """
    rows, heads, length, dim = keys.shape
    out = keys.new_empty(order.shape)
    if not out.numel():
        return out
    flat_keys, key_stride = _vectors(keys)
    flat_order, order_stride = _lines(order)
    seen, _ = _lines(state["seen"])
    inverse, stride = _lines(state["inverse"])
    match, similarity = _matches(state, threshold is not None)
    group, observed = queries.shape[1] // heads, queries.shape[2]
    _spread(
        machine.rkv_pairs,
        rows * heads,
        flat_keys,
        key_stride,
        length,
        dim,
        queries.contiguous().view(-1).numpy(),
        group,
        observed,
        flat_order,
        order_stride,
        logical.numpy(),
        heads,
        inverse,
        _whole(state["total"]),
        seen,
        state["seen"].shape[3],
        match,
        similarity,
        stride,
        new,
        window,
        kernel_size,
        np.float32(lam),
        np.float32(threshold or 0.0),
        out.view(-1).numpy(),
    )
    return out


def score_snapkv(
    keys: Tensor,
    queries: Tensor,
    order: Tensor,
    logical: Tensor,
    seen: Tensor,
    *,
    window: int,
    kernel_size: int,
    pooling: Literal["max", "avg"],
) -> Tensor:
    """`SnapKVTracker.score`; `seen` is brought up to date.

    Args:
        keys: as for `score_rkv`.
        queries: as for `score_rkv`.
        order: as for `score_rkv`.
        logical: as for `score_rkv`.
        seen: a view [rows, kv_heads, length, observation] float32.
        window: entries at the end that are not scored; less than `length`.
        kernel_size: width of the pooling; odd.
        pooling: "max", or "avg" with zeros beyond the ends.

    Returns:
        float32 [rows, kv_heads, length] in temporal order.

    Raises:
        ValueError: `seen` is no view whose lines lie one behind the other.
    """
    rows, heads, length, dim = keys.shape
    out = keys.new_empty(order.shape)
    if not out.numel():
        return out
    flat_keys, key_stride = _vectors(keys)
    flat_order, order_stride = _lines(order)
    ring = seen.shape[3]
    flat_seen, stride = _lines(seen)
    _spread(
        machine.snapkv_pairs,
        rows * heads,
        flat_keys,
        key_stride,
        length,
        dim,
        queries.contiguous().view(-1).numpy(),
        queries.shape[1] // heads,
        queries.shape[2],
        flat_order,
        order_stride,
        logical.numpy(),
        heads,
        flat_seen,
        stride // ring,
        ring,
        window,
        kernel_size,
        pooling == "max",
        out.view(-1).numpy(),
    )
    return out


def drop(
    keys: Tensor, order: Tensor, state: Mapping[str, Tensor], slots: Tensor, sources: Tensor
) -> None:
    """`RKVTracker.drop`: the entries at `slots` leave, those at `sources` take their places.

    Args:
        keys: as for `score_rkv`.
        order: as for `score_rkv`.
        state: as for `score_rkv`; without "match" nothing refers to a place.
        slots: [rows, kv_heads, dropped] int64.
        sources: the same.
    """
    rows, heads, length, dim = keys.shape
    if not slots.numel():
        return
    flat_keys, key_stride = _vectors(keys)
    flat_order, order_stride = _lines(order)
    inverse, stride = _lines(state["inverse"])
    match, _ = _matches(state, "match" in state)
    _spread(
        machine.drop_pairs,
        rows * heads,
        flat_keys,
        key_stride,
        length,
        dim,
        flat_order,
        order_stride,
        inverse,
        _whole(state["total"]),
        match,
        stride,
        slots.contiguous().view(-1).numpy(),
        sources.contiguous().view(-1).numpy(),
        slots.shape[2],
    )


def forget(order: Tensor, gone: Tensor, slots: Tensor) -> None:
    """Close the gaps that entries leave in an order, when the newest ones move into their slots.

    Args:
        order: [rows, kv_heads, length] int64, where the i-th oldest entry lies; a view of the cache
            whose first length - dropped ranks are rewritten.
        gone: [rows, kv_heads, dropped] int64 ranks that leave, ascending.
        slots: the same; where they lay.
    """
    rows, heads, length = order.shape
    if gone.numel():
        flat, stride = _lines(order)
        both = (value.contiguous().view(-1).numpy() for value in (gone, slots))
        _spread(machine.forget_pairs, rows * heads, flat, stride, length, *both, gone.shape[2])


def _matches(state: Mapping[str, Tensor], known: bool) -> tuple[Array, Array]:
    if not known:
        return np.empty(0, np.int32), np.empty(0, np.float32)
    return _lines(state["match"])[0], _lines(state["similarity"])[0]


def _lines(value: Tensor) -> tuple[Array, int]:
    """[rows, heads, length, ...] as one flat array over the same memory, and how far apart in it
    the lines of two pairs begin."""
    rows, heads, length = value.shape[:3]
    width = value[0, 0, 0].numel()
    # The stride of an axis of length 1 is whatever it was before it was cut to that.
    stride = value.stride(1) if heads > 1 else value.stride(0) if rows > 1 else length * width
    apart = rows == 1 or value.stride(0) == heads * stride
    if not apart or not value[0, 0].is_contiguous():
        raise ValueError(
            f"strides {value.stride()} of a tensor {list(value.shape)}: the lines of a tracked "
            "cache lie at equal distances"
        )
    size = (rows * heads - 1) * stride + length * width
    return value.as_strided((size,), (1,), value.storage_offset()).numpy(), stride


def _vectors(keys: Tensor) -> tuple[Array, int]:
    """The lines of keys, copied where the numbers of a key do not lie side by side."""
    return _lines(keys.contiguous() if keys.stride(3) != 1 else keys)


def _whole(value: Tensor) -> Array:
    flat: Array = value.view(-1).numpy()
    return flat


def _spread(work: Callable[..., None], pairs: int, *arguments: object) -> None:
    """Call `work(first, last, *arguments)` for all pairs."""
    threads = min(torch.get_num_threads(), pairs // _LEAST)
    if threads <= 1:
        work(0, pairs, *arguments)
        return
    pool, parts = _pool(), []
    for i in range(1, threads):
        first, last = pairs * i // threads, pairs * (i + 1) // threads
        try:
            parts.append(pool.submit(work, first, last, *arguments))
        except RuntimeError:  # the interpreter is about to end: threads take no more work
            work(first, last, *arguments)
    work(0, pairs // threads, *arguments)
    for part in parts:
        part.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """The only one: it starts threads when they have work, whatever torch's number is then."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="kvrescue kernels")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)

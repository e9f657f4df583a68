"""Tensor code the built-in evictors share: walking over rows, observed attention, pooling.

Everything is computed in float32 and row by row: `chunks` walks over the rows in pieces that fit
the CPU caches, because reading the keys from memory is what a select costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from kvrescue.errors import EvictorError
from kvrescue.evictors.base import KVSlice

__all__ = ["chunks", "importance", "past_length", "pool", "rows_at", "score_rows"]

_CHUNK_BYTES = {"cpu": 2 << 20}
_CHUNK_BYTES_ACCELERATOR = 256 << 20


def chunks(kv: KVSlice) -> Iterator[slice]:
    """Slices of rows whose float32 keys fit the cache that matters on the device."""
    rows, heads, length, dim = kv.keys.shape
    budget = _CHUNK_BYTES.get(kv.keys.device.type, _CHUNK_BYTES_ACCELERATOR)
    step = max(1, budget // max(1, heads * length * dim * 4))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def past_length(kind: str, kv: KVSlice, window: int) -> int:
    """Entries before the window; an error when there are none."""
    length = kv.keys.shape[2]
    if length <= window:
        raise EvictorError(
            f"evictor {kind!r}: KVSlice.keys holds {length} entries, all inside the window of "
            f"{window}; there is nothing to score (`select` keeps such rows as they are)"
        )
    return length - window


def score_rows(
    kv: KVSlice, past: int, score_pairs: Callable[[Tensor, Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Run `score_pairs` over chunks of rows; window entries get 0.

    `score_pairs(keys [pairs, length, dim], queries [pairs, group, observation, dim], positions
    [pairs, length] or None) -> [pairs, past]`, pairs = rows x KV heads, all float32.
    """
    rows, heads, length, dim = kv.keys.shape
    group = kv.queries.shape[1] // heads
    observed = kv.queries.shape[2]
    out = torch.zeros((rows, heads, length), dtype=torch.float32, device=kv.keys.device)
    for part in chunks(kv):
        keys = kv.keys[part].to(torch.float32).flatten(0, 1)
        queries = kv.queries[part].to(torch.float32).reshape(-1, group, observed, dim)
        positions = None if kv.positions is None else kv.positions[part].flatten(0, 1)
        out[part, :, :past] = score_pairs(keys, queries, positions).view(-1, heads, past)
    return out


def importance(
    keys: Tensor,
    queries: Tensor,
    positions: Tensor | None,
    past: int,
    *,
    reduce: Literal["max", "mean"] = "max",
    softmax_over: Literal["past", "all"] = "past",
) -> Tensor:
    """Attention that the observation queries pay to each past entry, before pooling.

    keys [pairs, n, dim], queries [pairs, group, w, dim] -> [pairs, past].

    `reduce="max"`: the largest logit of the query group, then softmax, then the mean over queries
    (R-KV). `reduce="mean"`: softmax per query head, then the mean over queries and group
    (kvpress). `softmax_over="past"`: only past entries take part and no causal mask applies while
    w <= n - past (all queries are then newer than the past). `"all"`: every entry a query could
    see takes part.
    """
    pairs, length, dim = keys.shape
    group, observed = queries.shape[1:3]
    width = past if softmax_over == "past" else length
    logits = torch.bmm(queries.reshape(pairs, group * observed, dim), keys[:, :width].mT)
    logits = logits.view(pairs, group, observed, width)
    if reduce == "max":
        logits = logits.amax(1, keepdim=True) if group > 1 else logits
    logits.mul_(1.0 / math.sqrt(dim))
    if softmax_over == "all" or observed > length - past:
        unseen = _unseen(positions, length, observed, width, keys.device)
        logits.masked_fill_(unseen, torch.finfo(torch.float32).min)
    weights = torch.softmax(logits, dim=-1)
    if width > past:
        weights = weights[..., :past]
    return weights.flatten(1, 2).mean(1)


def _unseen(
    positions: Tensor | None, length: int, observed: int, width: int, device: torch.device
) -> Tensor:
    """True where an entry is newer than the query; broadcasts to [pairs, group, observed, width].

    The query `observed - 1 - t` places before the last belongs to that many tokens before the
    newest entry, by logical position when known, else by physical index.
    """
    back = torch.arange(observed - 1, -1, -1, device=device)[:, None]
    if positions is None:
        return torch.arange(width, device=device) > (length - 1 - back)
    newest = positions[:, None, None, -1:]
    return positions[:, None, None, :width] > newest - back


def rows_at(values: Tensor, index: Tensor) -> Tensor:
    """[pairs, n, dim], [pairs, m] -> [pairs, m, dim]; whole vectors are copied, not numbers."""
    pairs, length, dim = values.shape
    if values.stride(2) != 1 or values.stride(0) % dim or values.stride(1) != dim:
        values = values.contiguous()
    step = values.stride(0) // dim
    flat = (index + step * torch.arange(pairs, device=index.device)[:, None]).flatten()
    whole = values.as_strided(((pairs - 1) * step + length, dim), (dim, 1), values.storage_offset())
    return whole.index_select(0, flat).view(pairs, -1, dim)


def pool(values: Tensor, kernel_size: int, mode: Literal["max", "avg"]) -> Tensor:
    """Stride-1 pooling over the last axis of [pairs, n] with an odd kernel, same length.

    "max" pads with -inf; "avg" pads with zeros and always divides by the kernel size.
    """
    if kernel_size == 1:
        return values
    half = kernel_size // 2
    if mode == "avg":
        return avg_pool1d(values.unsqueeze(1), kernel_size, stride=1, padding=half).squeeze(1)
    # Doubling: after each round `span` neighbours are covered.
    out = torch.nn.functional.pad(values, (half, half), value=float("-inf"))
    span = 1
    while span < kernel_size:
        shift = min(span, kernel_size - span)
        out = torch.maximum(out[:, : out.shape[1] - shift], out[:, shift:])
        span += shift
    return out

"""Tensor code the built-in evictors share: observed attention, pooling, redundancy.

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

__all__ = ["chunks", "importance", "past_length", "pool", "redundancy", "score_rows"]

_CHUNK_BYTES = {"cpu": 2 << 20}
_CHUNK_BYTES_ACCELERATOR = 256 << 20
_BLOCK = 8
"""Newest columns searched first for the last match; on real keys most rows match here."""
_WIDE_BLOCK = 32
_EPS = 1e-8


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


def redundancy(keys: Tensor, threshold: float | None) -> Tensor:
    """R-KV redundancy [pairs, n] of keys [pairs, n, dim] in O(n * dim) per pair where it can.

    With u_j = k_j / (|k_j| + 1e-8), S_ij = u_i . u_j, S_ii = 0 and S[i, r_i] = 0, where r_i is
    the last j with S_ij > threshold (0 when there is none): softmax_j of (1/n) sum_i S_ij. The
    sum is u_j . sum_i u_i - |u_j|^2 - sum_{i: r_i = j} S_ij, so only r_i needs pairs, and it is
    searched from the newest entry.
    """
    pairs, length, _ = keys.shape
    norms = torch.linalg.vector_norm(keys, dim=-1)
    inverse = (norms + _EPS).reciprocal_()
    total = torch.bmm(inverse.unsqueeze(1), keys)
    own = (norms * inverse).square_()
    if threshold is None:
        sums = torch.bmm(total, keys.mT).squeeze(1).mul_(inverse).sub_(own)
        return torch.softmax(sums.div_(length), dim=-1)
    start = max(0, length - _BLOCK)
    block = keys[:, start:] * inverse[:, start:, None]
    dots = torch.bmm(torch.cat((total, block), dim=1), keys.mT)
    sums = (dots[:, 0] * inverse).sub_(own)
    search = _Search(keys, inverse, sums, threshold)
    pending = torch.ones((pairs, length), dtype=torch.bool, device=keys.device)
    pending = search.block(dots[:, 1:], start, pending)
    if start:
        search.finish(pending, start)
    return torch.softmax(sums.div_(length), dim=-1)


class _Search:
    """Finds each row's last match and takes its similarity out of `sums` (in place)."""

    def __init__(self, keys: Tensor, inverse: Tensor, sums: Tensor, threshold: float) -> None:
        self.keys = keys
        self.inverse = inverse
        self.sums = sums
        self.threshold = threshold
        # S_ij > T  <=>  k_i . u_j > T / inverse_i
        self.limits = (threshold / inverse).unsqueeze(1)

    def block(self, dots: Tensor, start: int, pending: Tensor) -> Tensor:
        """Search columns start.. of all rows; `dots` [pairs, columns, n] = u_j . k_i.

        Returns which rows are still without a match. At start 0 those exempt column 0.
        """
        width = dots.shape[1]
        dots[:, :, start : start + width].diagonal(dim1=1, dim2=2).zero_()
        order = torch.arange(1, width + 1, dtype=_small_int(width), device=dots.device)
        last = ((dots > self.limits) * order[:, None]).amax(1)
        found = (last > 0) & pending
        settled = found if start else pending
        column = (last.to(torch.int64) - 1).clamp_(min=0)
        similarity = dots.gather(1, column.unsqueeze(1)).squeeze(1)
        similarity.mul_(self.inverse).mul_(settled)
        self.sums.scatter_add_(1, column.add_(start), similarity.neg_())
        return pending & ~found

    def finish(self, pending: Tensor, start: int) -> None:
        """Settle the rows that have no match in columns start.. (start > 0)."""
        counts = pending.sum(1)
        most = int(counts.max())
        if most == 0:
            return
        limit = max(16, self.keys.shape[1] // 6)
        if most <= limit:
            self._few(pending, counts, most)
            return
        # Some pairs (one head of one layer, typically) have many: those go on in blocks.
        many = counts > limit
        for mask, search_on in ((many, True), (~many & (counts > 0), False)):
            index = mask.nonzero().squeeze(1)
            if not len(index):
                continue
            part = _Search(self.keys[index], self.inverse[index], self.sums[index], self.threshold)
            rest = pending[index]
            if search_on:
                part._blocks(rest, start)
            else:
                part._few(rest, counts[index], int(counts[index].max()))
            self.sums[index] = part.sums

    def _blocks(self, pending: Tensor, stop: int) -> None:
        """Column blocks from `stop` down to 0, until no row is pending."""
        while stop and bool(pending.any()):
            start = max(0, stop - _WIDE_BLOCK)
            block = self.keys[:, start:stop] * self.inverse[:, start:stop, None]
            pending = self.block(torch.bmm(block, self.keys.mT), start, pending)
            stop = start

    def _few(self, pending: Tensor, counts: Tensor, most: int) -> None:
        """All columns at once for the at most `most` pending rows of each pair."""
        pairs, length, dim = self.keys.shape
        device = self.keys.device
        slot = pending.cumsum(1) * pending
        places = torch.arange(length, device=device).expand(pairs, -1)
        rows = torch.zeros((pairs, most + 1), dtype=torch.int64, device=device)
        rows = rows.scatter_(1, slot, places)[:, 1:]
        valid = torch.arange(most, device=device) < counts[:, None]
        chosen = self.keys.gather(1, rows.unsqueeze(2).expand(-1, -1, dim))
        similarity = torch.bmm(chosen, self.keys.mT).mul_(self.inverse.unsqueeze(1))
        similarity.scatter_(2, rows.unsqueeze(2), 0.0)
        scale = self.inverse.gather(1, rows)
        order = torch.arange(1, length + 1, dtype=_small_int(length), device=device)
        last = ((similarity > (self.threshold / scale).unsqueeze(2)) * order).amax(2)
        column = (last.to(torch.int64) - 1).clamp_(min=0)
        taken = similarity.gather(2, column.unsqueeze(2)).squeeze(2).mul_(scale).mul_(valid)
        self.sums.scatter_add_(1, column, taken.neg_())


def _small_int(largest: int) -> torch.dtype:
    return torch.int8 if largest < 128 else torch.int16 if largest < 32768 else torch.int32

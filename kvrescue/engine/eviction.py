"""Eviction: an evictor at work on the rows of a slot store.

A row is due once `interval` entries exceed its bound B' + prefix, and is then cut down to exactly
that bound. When few entries leave, the ones from the end of the row move into their slots and
`order` keeps track of time: whole keys and values are not moved for the sake of one that left.
When many leave, what stays is compacted in temporal order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.moves import compact, move
from kvrescue.engine.slots import SlotStore
from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.evictors.selection import leaving, named, places_of
from kvrescue.evictors.tracking import TrackedCache, renamed

__all__ = ["Eviction"]

_FEW = 4  # up to 1 / _FEW of what stays may leave by single moves
_PIECE_BYTES = {"cpu": 128 << 20}  # of keys handled at once; bounds the temporary memory
_PIECE_BYTES_ACCELERATOR = 1 << 30


class Eviction:
    """One evictor with, if it has one and fires often enough to need it, its tracker."""

    def __init__(self, evictor: Evictor) -> None:
        self.evictor = evictor
        rare = evictor.interval * _FEW > evictor.bound
        self.tracker = None if rare else evictor.tracker()

    @torch.no_grad()
    def fire(self, store: SlotStore, count: int) -> np.ndarray:
        """Evict from every one of the first `count` rows that is due; returns entries dropped."""
        dropped = np.zeros(count, dtype=np.int64)
        keep = store.prefix[:count] + self.evictor.bound
        due = store.length[:count] >= keep + self.evictor.interval
        if not due.any():
            return dropped
        # Neighbours of equal geometry are handled together; while decoding that is all rows.
        seen = np.minimum(store.logical[:count], store.shape.observation)
        geometry = np.stack((store.length[:count], keep, seen, store.tracked[:count]))
        for rows in _runs(np.flatnonzero(due), geometry, _piece(store)):
            first = rows.start
            length, kept = int(store.length[first]), int(keep[first])
            self._evict(store, rows, length, kept, int(seen[first]))
            dropped[rows] = length - kept
            store.length[rows] = kept
            store.tracked[rows] = kept if self.tracker else 0
        return dropped

    def _evict(self, store: SlotStore, rows: slice, length: int, kept: int, seen: int) -> None:
        few = (length - kept) * _FEW <= kept
        # What came since the last time lies behind the new end, in temporal order, and stays.
        newest = length - kept <= self.evictor.window
        tracked = int(store.tracked[rows.start])
        prefix = int(store.prefix[rows.start])
        if self.tracker and few:
            new = length - tracked if tracked else 0
            if not tracked:  # nothing has left yet: the entries lie in temporal order
                queries = store.recent_queries(rows, seen)
                with named(self.evictor):
                    self.tracker.start(_tracked_cache(store, rows, queries, length))
            queries = store.recent_queries(rows, min(new, store.shape.observation))
            cache = _tracked_cache(store, rows, queries, length, new)
            kv = KVSlice(keys=cache.keys, queries=cache.queries)
            with named(self.evictor):
                scores = self.tracker.score(cache)
            gone = leaving(self.evictor, kv, scores, prefix)
            slots, sources = _places(cache.order, gone, newest)
            with named(self.evictor):
                self.tracker.drop(cache, slots, sources)
                compiled = self.tracker.compiled(cache.order.device)
            _replace(store, rows, slots, sources)
            if newest and compiled:
                from kvrescue.kernels.tracked import forget

                forget(cache.order, gone, slots)
            else:
                _forget(cache.order, gone, slots, sources, newest)
            return
        ranks = self.evictor.select(self._slice(store, rows, length, prefix, seen))
        if few:
            gone = _missing(ranks, length)
            order = _order(store, rows, length)
            slots, sources = _places(order, gone, newest)
            _replace(store, rows, slots, sources)
            _forget(order, gone, slots, sources, newest)
            return
        _compact(store, rows, ranks, length)
        if self.tracker:
            queries = store.recent_queries(rows, seen)
            with named(self.evictor):
                self.tracker.start(_tracked_cache(store, rows, queries, kept))

    def _slice(self, store: SlotStore, rows: slice, length: int, prefix: int, seen: int) -> KVSlice:
        """The rows in temporal order, layers side by side."""
        order = _order(store, rows, length).flatten(0, 1)

        def ordered(name: str) -> Tensor:
            part = store.entries[name][rows]
            return _take(_pairs(part), order).view(-1, part.shape[2], length, *part.shape[4:])

        reads = self.evictor
        keys = (
            ordered("keys") if reads.needs_keys else store.keys[rows, :, :, :length].flatten(0, 1)
        )
        n_rows = keys.shape[0]
        return KVSlice(
            keys=keys,
            queries=store.recent_queries(rows, seen),
            values=ordered("values") if reads.needs_values else None,
            positions=ordered("positions"),
            attention=ordered("mass") if reads.needs_attention else None,
            prefix=torch.full((n_rows,), prefix, device=keys.device) if prefix else None,
        )


def _runs(due: np.ndarray, geometry: np.ndarray, most: int) -> Iterator[slice]:
    """Slices of consecutive due rows whose columns of `geometry` agree, at most `most` each."""
    breaks = (np.diff(due) != 1) | (geometry[:, due[1:]] != geometry[:, due[:-1]]).any(axis=0)
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(due)]
    for start, stop in pairwise(edges):
        for first in range(start, stop, most):
            yield slice(int(due[first]), int(due[min(first + most, stop) - 1]) + 1)


def _piece(store: SlotStore) -> int:
    """Rows whose keys are worth handling at once."""
    shape = store.shape
    size = _PIECE_BYTES.get(shape.device.type, _PIECE_BYTES_ACCELERATOR)
    return max(1, size // (4 * shape.layers * shape.kv_heads * store.capacity * shape.head_dim))


def _pairs(value: Tensor) -> Tensor:
    """[rows, layers, kv_heads, slots, ...] -> [rows * layers * kv_heads, slots, ...]."""
    return value.flatten(0, 2)


def _take(values: Tensor, index: Tensor) -> Tensor:
    """[pairs, slots, ...] whole slots, [pairs, m] -> [pairs, m, ...]."""
    return (
        values.flatten(0, 1)
        .index_select(0, _flat(index, values.shape[1]))
        .view(*index.shape, *values.shape[2:])
    )


def _flat(index: Tensor, slots: int) -> Tensor:
    base = torch.arange(len(index), device=index.device)[:, None] * slots
    return (index + base).flatten()


def _tracked_cache(
    store: SlotStore, rows: slice, queries: Tensor, length: int, new: int = 0
) -> TrackedCache:
    layers = store.shape.layers
    logical = torch.from_numpy(store.logical[rows]).to(store.shape.device)
    state = {
        name: store.entries[name][rows, :, :, :length].flatten(0, 1)
        for name in store.shape.entry_state
    }
    state |= {name: store.heads[name][rows].flatten(0, 1) for name in store.shape.head_state}
    return TrackedCache(
        keys=store.keys[rows, :, :, :length].flatten(0, 1).to(torch.float32),
        queries=queries.to(torch.float32),
        order=_order(store, rows, length),
        logical=logical.repeat_interleave(layers),
        state=state,
        new=new,
    )


def _order(store: SlotStore, rows: slice, length: int) -> Tensor:
    """[rows * layers, kv_heads, length], a view."""
    return store.entries["order"][rows, :, :, :length].flatten(0, 1)


def _missing(ranks: Tensor, length: int) -> Tensor:
    """From the ranks that stay to those that leave [rows*layers, kv_heads, dropped], ascending."""
    dropped = length - ranks.shape[2]
    if dropped == 1:  # the one rank that is missing from 0 .. length-1
        return length * (length - 1) // 2 - ranks.sum(-1, keepdim=True)
    leave = torch.ones(*ranks.shape[:2], length, dtype=torch.bool, device=ranks.device)
    return places_of(leave.scatter_(2, ranks, False), dropped)


def _places(order: Tensor, gone: Tensor, newest: bool) -> tuple[Tensor, Tensor]:
    """The slots of the ranks that leave, and for each slot the one whose entry takes its place;
    itself where it lies behind the new end. Both [rows*layers, kv_heads, dropped].

    `newest`: all that lies behind the new end stays, and is in temporal order.
    """
    length, dropped = order.shape[2], gone.shape[2]
    kept = length - dropped
    slots = order.gather(2, gone)
    if newest:
        return slots, torch.arange(kept, length, device=order.device).expand_as(slots)
    slots = slots.sort(2).values
    tail = torch.zeros_like(order, dtype=torch.int8).scatter_(2, slots, 1)[:, :, kept:]
    return slots, torch.argsort(tail, dim=2, stable=True) + kept


def _replace(store: SlotStore, rows: slice, slots: Tensor, sources: Tensor) -> None:
    """Entries at `sources` move to `slots`."""
    pairs = slots.shape[0] * slots.shape[1]
    first = rows.start * store.shape.layers * store.shape.kv_heads
    base = torch.arange(first, first + pairs, device=slots.device)[:, None] * store.capacity
    source, target = ((base + places.flatten(0, 1)).flatten() for places in (sources, slots))
    for name, value in store.entries.items():
        if name != "order":
            move(value.view(-1, *value.shape[4:]), source, target)


def _forget(order: Tensor, gone: Tensor, slots: Tensor, sources: Tensor, newest: bool) -> None:
    """The order without the ranks in `gone`, and with the new places of what moved."""
    length, dropped = order.shape[2], gone.shape[2]
    kept = length - dropped
    if dropped == 1:
        earlier = torch.arange(kept, device=order.device) < gone
        left = torch.where(earlier, order[:, :, :kept], order[:, :, 1:])
    else:
        stays = torch.ones_like(order, dtype=torch.bool).scatter_(2, gone, False)
        left = order.masked_select(stays).view(*order.shape[:2], kept)
    if newest:
        left[:, :, kept - dropped :] = slots
    else:
        left = renamed(length, slots, sources).gather(2, left)
    order[:, :, :kept] = left


def _compact(store: SlotStore, rows: slice, ranks: Tensor, length: int) -> None:
    """Keep `ranks`, in temporal order, in the first slots."""
    kept = ranks.shape[2]
    index = _order(store, rows, length).gather(2, ranks).flatten(0, 1)
    for name, value in store.entries.items():
        if name == "order":
            value[rows, :, :, :kept] = torch.arange(kept, device=value.device)
        elif name not in store.shape.entry_state:
            compact(_pairs(value[rows]), index)

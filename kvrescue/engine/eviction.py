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
from kvrescue.evictors.selection import choose, named
from kvrescue.evictors.tracking import TrackedCache

__all__ = ["Eviction"]

_FEW = 4  # up to 1 / _FEW of what stays may leave by single moves
_PIECE_BYTES = {"cpu": 32 << 20}  # of keys handled at once; bounds the temporary memory
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
            ranks = choose(self.evictor, kv, scores, prefix)
            slots, renamed = _rename(cache.order, ranks)
            with named(self.evictor):
                self.tracker.drop(cache, slots, renamed)
            _move(store, rows, ranks, renamed)
            return
        ranks = self.evictor.select(self._slice(store, rows, length, prefix, seen))
        if few:
            _, renamed = _rename(_order(store, rows, length), ranks)
            _move(store, rows, ranks, renamed)
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


def _rename(order: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """From kept ranks to the dropped slots [rows*layers, kv_heads, dropped], ascending, and where
    each slot's entry will lie [rows*layers, kv_heads, length] (-1: it leaves)."""
    lead, length, kept = ranks.shape[:2], order.shape[2], ranks.shape[2]
    if length - kept == 1:  # the one rank that is missing from 0 .. length-1
        slots = order.gather(2, length * (length - 1) // 2 - ranks.sum(-1, keepdim=True))
    else:
        stays = torch.zeros(*lead, length, dtype=torch.bool, device=ranks.device)
        stays.scatter_(2, order.gather(2, ranks), True)
        slots = stays.logical_not().nonzero()[:, 2].view(*lead, length - kept)
    renamed = torch.arange(length, device=ranks.device).repeat(*lead, 1)
    renamed.scatter_(2, slots, -1)
    # The entries of the last slots that stay go to the freed slots before them, in order. As many
    # last slots are freed themselves: those pair up with one another behind the new end.
    tail = renamed[:, :, kept:]
    sources = torch.argsort((tail < 0).to(torch.int8), dim=2, stable=True) + kept
    renamed.scatter_(2, sources, torch.where(renamed.gather(2, sources) < 0, -1, slots))
    return slots, renamed


def _move(store: SlotStore, rows: slice, ranks: Tensor, renamed: Tensor) -> None:
    """Move entries from behind the new end to where `renamed` says, and note the order."""
    kept = ranks.shape[2]
    target = renamed[:, :, kept:].flatten(0, 1)
    pair, place = (target >= 0).nonzero(as_tuple=True)
    base = (pair + rows.start * store.shape.layers * store.shape.kv_heads) * store.capacity
    source, target = base + place + kept, base + target[pair, place]
    for name, value in store.entries.items():
        if name != "order":
            move(value.view(-1, *value.shape[4:]), source, target)
    order = _order(store, rows, renamed.shape[2])
    order[:, :, :kept] = renamed.gather(2, order.gather(2, ranks))


def _compact(store: SlotStore, rows: slice, ranks: Tensor, length: int) -> None:
    """Keep `ranks`, in temporal order, in the first slots."""
    kept = ranks.shape[2]
    index = _order(store, rows, length).gather(2, ranks).flatten(0, 1)
    for name, value in store.entries.items():
        if name == "order":
            value[rows, :, :, :kept] = torch.arange(kept, device=value.device)
        elif name not in store.shape.entry_state:
            compact(_pairs(value[rows]), index)

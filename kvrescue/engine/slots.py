"""SlotStore: physically bounded KV storage, one row per sequence.

Every row keeps its entries in slots `0 .. length-1`, the same number in every layer and KV head
(which entries they are differs per head once an evictor has fired). Attention does not care in
which slot an entry lies, because RoPE is already applied to the keys; where time matters, `order`
tells it. `logical` counts positions and never shrinks while `length` is what is physically held.

Row-major layout `[rows, layers, ...]`: all layers of one row are one block of memory, so a fork
is one copy, and `[rows * layers]` is a free view for evictors, which treat both alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kvrescue.evictors.tracking import StateField

__all__ = ["KVBlock", "KVShape", "SlotStore", "width_bucket"]

_GROW = 64  # slots; unbounded stores grow in pieces of this size


@dataclass(frozen=True, slots=True)
class KVShape:
    """Geometry of a model's cache and what an evictor needs beside keys and values."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    observation: int = 0
    """Ring of the most recent queries kept per row; 0 without an evictor."""
    attention: bool = False
    """Whether attention mass is accumulated per entry."""
    entry_state: Mapping[str, StateField] = field(default_factory=dict)
    """What a score tracker remembers per entry ..."""
    head_state: Mapping[str, StateField] = field(default_factory=dict)
    """... and per KV head."""

    @property
    def evicts(self) -> bool:
        return self.observation > 0


@dataclass(frozen=True, slots=True)
class KVBlock:
    """State of rows copied out of a store: the finished forks that may yet be adopted.

    Holds slots `start .. start+width` of each row only: below `start` a fork equals its parent.
    """

    start: int
    entries: dict[str, Tensor]  # [rows, layers, kv_heads, width, ...]
    heads: dict[str, Tensor]  # [rows, layers, heads, ...]


class SlotStore:
    """Rows of cached keys and values; rows in use are managed by the caller.

    `length`, `logical`, `prefix` (protected leading entries) and `tracked` (entries whose state a
    score tracker knows) are host arrays, so that scheduling never waits for the device.
    """

    COUNTERS = ("length", "logical", "prefix", "tracked")

    def __init__(self, shape: KVShape, rows: int, capacity: int) -> None:
        self.shape = shape
        self.rows = 0
        self.capacity = 0
        self.length = np.zeros(0, dtype=np.int64)
        self.logical = np.zeros(0, dtype=np.int64)
        self.prefix = np.zeros(0, dtype=np.int64)
        self.tracked = np.zeros(0, dtype=np.int64)
        self.entries: dict[str, Tensor] = {}
        """What every entry has, [rows, layers, kv_heads, capacity, ...]: "keys" and "values"
        [head_dim]; with an evictor "positions" (logical) and "order" (the slot of the i-th oldest
        entry), "mass" if attention is accumulated, and the state of a tracker."""
        self.heads: dict[str, Tensor] = {}
        """What every head has, [rows, layers, heads, ...]: "queries" [observation, head_dim] per
        query head, a ring by logical position; the state of a tracker per KV head."""
        self._allocate(rows, capacity)

    # -- memory ---------------------------------------------------------------------------------

    def _fields(self) -> tuple[dict[str, StateField], dict[str, StateField]]:
        s = self.shape
        vector = StateField((s.head_dim,), s.dtype)
        entries, heads = {"keys": vector, "values": vector}, {}
        if s.evicts:
            entries["positions"] = StateField((), torch.int32)
            entries["order"] = StateField((), torch.int64)
            heads["queries"] = StateField((s.observation, s.head_dim), s.dtype)
        if s.attention:
            entries["mass"] = StateField((), torch.float32)
        return {**entries, **s.entry_state}, {**heads, **s.head_state}

    def _allocate(self, rows: int, capacity: int) -> None:
        s = self.shape
        used = int(self.length.max(initial=0))
        entries, heads = self._fields()
        for name, spec in entries.items():
            size = (rows, s.layers, s.kv_heads, capacity, *spec.shape)
            new = torch.zeros(size, dtype=spec.dtype, device=s.device)
            if self.rows:
                new[: self.rows, :, :, :used] = self.entries[name][:, :, :, :used]
            self.entries[name] = new
        for name, spec in heads.items():
            count = s.q_heads if name == "queries" else s.kv_heads
            new = torch.zeros(
                (rows, s.layers, count, *spec.shape), dtype=spec.dtype, device=s.device
            )
            if self.rows:
                new[: self.rows] = self.heads[name]
            self.heads[name] = new
        for name in self.COUNTERS:
            grown = np.zeros(rows, dtype=np.int64)
            grown[: self.rows] = getattr(self, name)
            setattr(self, name, grown)
        self.rows, self.capacity = rows, capacity

    @property
    def keys(self) -> Tensor:
        return self.entries["keys"]

    @property
    def values(self) -> Tensor:
        return self.entries["values"]

    def reserve(self, rows: int, capacity: int) -> None:
        """Make room for `rows` rows of `capacity` slots, keeping what is stored."""
        if rows > self.rows or capacity > self.capacity:
            if capacity > self.capacity:
                capacity = -(-capacity // _GROW) * _GROW if self.capacity else capacity
            if rows > self.rows:
                rows = max(rows, 2 * self.rows)
            self._allocate(max(rows, self.rows), max(capacity, self.capacity))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values allocated."""
        return 2 * self.keys.numel() * self.keys.element_size()

    # -- moving rows ----------------------------------------------------------------------------

    def _count(self, rows: np.ndarray, other: SlotStore, sources: np.ndarray) -> None:
        for name in self.COUNTERS:
            getattr(self, name)[rows] = getattr(other, name)[sources]

    def copy_from(self, other: SlotStore, sources: Sequence[int], rows: Sequence[int]) -> None:
        """Rows `rows` become copies of `other`'s rows `sources` (may be this store)."""
        src, dst = np.asarray(sources, dtype=np.int64), np.asarray(rows, dtype=np.int64)
        if not len(src):
            return
        n = int(other.length[src].max())
        for name, mine in self.entries.items():
            _copy(mine[:, :, :, :n], dst, other.entries[name][:, :, :, :n], src)
        for name, mine in self.heads.items():
            _copy(mine, dst, other.heads[name], src)
        self._count(dst, other, src)

    def broadcast_from(self, other: SlotStore, source: int, first: int, count: int) -> None:
        """Fork: rows `first .. first+count` become copies of `other`'s row `source`."""
        n = int(other.length[source])
        rows = slice(first, first + count)
        for name, mine in self.entries.items():
            mine[rows, :, :, :n] = other.entries[name][source, :, :, :n]
        for name, mine in self.heads.items():
            mine[rows] = other.heads[name][source]
        self._count(np.arange(first, first + count), other, np.full(count, source))

    def export(self, rows: Sequence[int], start: int) -> KVBlock:
        """Copy rows out, slots from `start` on."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.shape.device)
        stop = max(start, int(self.length[list(rows)].max(initial=0)))
        return KVBlock(
            start,
            {
                name: value[:, :, :, start:stop].index_select(0, index)
                for name, value in self.entries.items()
            },
            {name: value.index_select(0, index) for name, value in self.heads.items()},
        )

    def adopt(
        self,
        row: int,
        block: KVBlock,
        index: int,
        length: int,
        logical: int,
        *,
        tracked: int = 0,
        first: int | None = None,
        shift: int = 0,
    ) -> None:
        """Row `row` takes the state of the block's row `index`, of `length` entries.

        The row equals the block's parent below slot `first` (default: where the block starts);
        what follows lies `shift` slots further on in the block.
        """
        self.reserve(self.rows, length)
        first = block.start if first is None else first
        source = slice(first + shift - block.start, length + shift - block.start)
        for name, mine in self.entries.items():
            mine[row, :, :, first:length] = block.entries[name][index, :, :, source]
        for name, mine in self.heads.items():
            mine[row] = block.heads[name][index]
        self.length[row], self.logical[row], self.tracked[row] = length, logical, tracked

    def scrub(self, rows: Sequence[int]) -> None:
        """Zero rows that hold NaN or infinities: a mask hides stale slots, but 0 * NaN is NaN."""
        for values in (self.entries, self.heads):
            for value in values.values():
                value[list(rows)] = 0
        if "order" in self.entries:
            order = self.entries["order"]
            order[list(rows)] = torch.arange(self.capacity, device=order.device)
        self.tracked[list(rows)] = 0

    def recent_queries(self, rows: slice, count: int) -> Tensor:
        """[rows * layers, q_heads, count, head_dim]: the newest queries, oldest first."""
        if "queries" not in self.heads:
            raise RuntimeError("a store whose rows are evicted needs KVShape.observation > 0")
        s, ring = self.shape, self.shape.observation
        last = self.logical[rows, None] - count + np.arange(count)
        heads = s.layers * s.q_heads
        lines = np.arange(rows.start, rows.stop)[:, None] * heads + np.arange(heads)
        flat = (lines[:, :, None] * ring + (last % ring)[:, None, :]).ravel()
        index = torch.from_numpy(flat).to(s.device)
        ordered = self.heads["queries"].view(-1, s.head_dim).index_select(0, index)
        return ordered.view(len(last) * s.layers, s.q_heads, count, s.head_dim)

    def in_order(self, name: str, row: int) -> Tensor:
        """[layers, kv_heads, length, ...]: one row's entries from the oldest to the newest."""
        value = self.entries[name][row, :, :, : int(self.length[row])]
        if "order" not in self.entries:
            return value
        order = self.entries["order"][row, :, :, : value.shape[2]]
        order = order.view(*order.shape, *(1 for _ in value.shape[3:])).expand_as(value)
        return value.gather(2, order)


def _copy(mine: Tensor, rows: np.ndarray, theirs: Tensor, sources: np.ndarray) -> None:
    """mine[rows] = theirs[sources]; between two stores in one pass where either side is a range."""
    first, start, count = int(rows[0]), int(sources[0]), len(rows)
    apart = mine.data_ptr() != theirs.data_ptr()
    index = torch.from_numpy(sources).to(theirs.device)
    if apart and _is_range(rows):
        torch.index_select(theirs, 0, index, out=mine[first : first + count])
        return
    whole = apart and _is_range(sources)
    values = theirs[start : start + count] if whole else theirs.index_select(0, index)
    mine.index_copy_(0, torch.from_numpy(rows).to(mine.device), values)


def _is_range(numbers: np.ndarray) -> bool:
    return bool((np.diff(numbers) == 1).all())


def width_bucket(width: int) -> int:
    """64, 96, 128, 192, 256, 384, ...: at most half as much again."""
    bucket = 64
    while bucket < width:
        bucket += bucket // 2 if bucket & (bucket - 1) == 0 else bucket // 3
    return bucket

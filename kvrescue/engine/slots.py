"""SlotStore: physically bounded KV storage, one row per sequence.

Every row keeps its entries in temporal order in slots `0 .. length-1`, the same number in every
layer and KV head (which entries they are differs per head once an evictor has fired). RoPE is
already applied to the keys, so `logical` counts positions and never shrinks while `length` is
what is physically held.

Row-major layout `[rows, layers, ...]`: all layers of one row are one block of memory, so a fork
is one copy, and `[rows * layers]` is a free view for evictors, which treat both alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvrescue.evictors.base import Evictor, KVSlice

__all__ = ["KVBlock", "KVShape", "SlotStore"]

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

    @property
    def tracks_positions(self) -> bool:
        return self.observation > 0


@dataclass(frozen=True, slots=True)
class KVBlock:
    """State of rows copied out of a store: the finished forks that may yet be adopted.

    Holds slots `start .. start+width` of each row only: below `start` a fork equals its parent.
    """

    start: int
    keys: Tensor  # [rows, layers, kv_heads, width, head_dim]
    values: Tensor
    positions: Tensor | None
    queries: Tensor | None
    mass: Tensor | None


class SlotStore:
    """Rows of cached keys and values; rows in use are managed by the caller.

    `length`, `logical` and `prefix` (protected leading entries) are host arrays, so that
    scheduling never waits for the device.
    """

    def __init__(self, shape: KVShape, rows: int, capacity: int) -> None:
        self.shape = shape
        self.rows = 0
        self.capacity = 0
        self.length = np.zeros(0, dtype=np.int64)
        self.logical = np.zeros(0, dtype=np.int64)
        self.prefix = np.zeros(0, dtype=np.int64)
        self._allocate(rows, capacity)

    # -- memory ---------------------------------------------------------------------------------

    def _allocate(self, rows: int, capacity: int) -> None:
        s = self.shape
        old = self.__dict__.copy() if self.rows else None
        kv = (rows, s.layers, s.kv_heads, capacity)
        self.keys = torch.zeros(*kv, s.head_dim, dtype=s.dtype, device=s.device)
        self.values = torch.zeros(*kv, s.head_dim, dtype=s.dtype, device=s.device)
        self.positions = self.queries = self.mass = None
        if s.tracks_positions:
            self.positions = torch.zeros(*kv, dtype=torch.int32, device=s.device)
            self.queries = torch.zeros(
                rows, s.layers, s.q_heads, s.observation, s.head_dim, dtype=s.dtype, device=s.device
            )
        if s.attention:
            self.mass = torch.zeros(*kv, dtype=torch.float32, device=s.device)
        for name in ("length", "logical", "prefix"):
            grown = np.zeros(rows, dtype=np.int64)
            grown[: self.rows] = getattr(self, name)
            setattr(self, name, grown)
        if old is not None:
            used = int(self.length[: self.rows].max(initial=0))
            for name in ("keys", "values", "positions", "mass"):
                if (new := getattr(self, name)) is not None:
                    new[: self.rows, :, :, :used] = old[name][:, :, :, :used]
            if self.queries is not None:
                self.queries[: self.rows] = old["queries"]
        self.rows, self.capacity = rows, capacity

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

    def _meta(self, rows: np.ndarray, other: SlotStore, sources: np.ndarray) -> None:
        for name in ("length", "logical", "prefix"):
            getattr(self, name)[rows] = getattr(other, name)[sources]

    def copy_from(self, other: SlotStore, sources: Sequence[int], rows: Sequence[int]) -> None:
        """Rows `rows` become copies of `other`'s rows `sources` (may be this store)."""
        src, dst = np.asarray(sources, dtype=np.int64), np.asarray(rows, dtype=np.int64)
        if not len(src):
            return
        n = int(other.length[src].max())
        ts = torch.from_numpy(src).to(self.shape.device)
        td = torch.from_numpy(dst).to(self.shape.device)
        for name in ("keys", "values", "positions", "mass"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                mine[:, :, :, :n].index_copy_(0, td, theirs[:, :, :, :n].index_select(0, ts))
        if self.queries is not None and other.queries is not None:
            self.queries.index_copy_(0, td, other.queries.index_select(0, ts))
        self._meta(dst, other, src)

    def broadcast_from(self, other: SlotStore, source: int, first: int, count: int) -> None:
        """Fork: rows `first .. first+count` become copies of `other`'s row `source`."""
        n = int(other.length[source])
        rows = slice(first, first + count)
        for name in ("keys", "values", "positions", "mass"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                mine[rows, :, :, :n] = theirs[source, :, :, :n]
        if self.queries is not None and other.queries is not None:
            self.queries[rows] = other.queries[source]
        span = np.arange(first, first + count)
        self._meta(span, other, np.full(count, source))

    def export(self, rows: Sequence[int], start: int) -> KVBlock:
        """Copy rows out, slots from `start` on."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.shape.device)
        stop = max(start, int(self.length[list(rows)].max(initial=0)))

        def take(x: Tensor) -> Tensor:
            return x[:, :, :, start:stop].index_select(0, index)

        return KVBlock(
            start,
            take(self.keys),
            take(self.values),
            None if self.positions is None else take(self.positions),
            None if self.queries is None else self.queries.index_select(0, index),
            None if self.mass is None else take(self.mass),
        )

    def adopt(
        self,
        row: int,
        block: KVBlock,
        index: int,
        length: int,
        logical: int,
        *,
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
        for name in ("keys", "values", "positions", "mass"):
            mine, theirs = getattr(self, name), getattr(block, name)
            if mine is not None and theirs is not None:
                mine[row, :, :, first:length] = theirs[index, :, :, source]
        if self.queries is not None and block.queries is not None:
            self.queries[row] = block.queries[index]
        self.length[row], self.logical[row] = length, logical

    # -- eviction -------------------------------------------------------------------------------

    def evict(self, evictor: Evictor, count: int) -> np.ndarray:
        """Compact every one of the first `count` rows that is due; returns entries dropped.

        A row is due once `interval` entries exceed its bound B' + prefix, and is then cut down to
        exactly that bound, in temporal order.
        """
        dropped = np.zeros(count, dtype=np.int64)
        keep = self.prefix[:count] + evictor.bound
        due = self.length[:count] >= keep + evictor.interval
        if not due.any():
            return dropped
        # Rows of equal geometry are compacted together; during decoding that is all of them.
        groups: dict[tuple[int, int, int], list[int]] = {}
        for row in np.flatnonzero(due).tolist():
            n_queries = min(int(self.logical[row]), self.shape.observation)
            key = (int(self.length[row]), int(self.prefix[row]), n_queries)
            groups.setdefault(key, []).append(row)
        for (length, prefix, n_queries), rows in groups.items():
            self._compact(evictor, rows, length, prefix, n_queries)
            kept = prefix + evictor.bound
            dropped[rows] = length - kept
            self.length[rows] = kept
        return dropped

    def _compact(
        self, evictor: Evictor, rows: list[int], length: int, prefix: int, n_queries: int
    ) -> None:
        s = self.shape
        n_rows = len(rows) * s.layers
        whole = rows == list(range(len(rows)))  # leading rows need no gather
        index = torch.tensor(rows, dtype=torch.long, device=s.device)

        def take(x: Tensor) -> Tensor:
            part = x[: len(rows)] if whole else x.index_select(0, index)
            return part.flatten(0, 1)

        keys = take(self.keys)
        values = take(self.values)
        positions = None if self.positions is None else take(self.positions)
        mass = None if self.mass is None else take(self.mass)
        kv = KVSlice(
            keys=keys[:, :, :length],
            queries=self._ordered_queries(rows, n_queries),
            values=values[:, :, :length],
            positions=None if positions is None else positions[:, :, :length],
            attention=None if mass is None else mass[:, :, :length],
            prefix=torch.full((n_rows,), prefix, device=s.device) if prefix else None,
        )
        kept = evictor.select(kv)  # [rows*layers, kv_heads, kept]
        n_kept = kept.shape[-1]
        # One flat index serves all tensors: whole head_dim vectors move, never single numbers.
        heads = torch.arange(n_rows * s.kv_heads, device=s.device) * self.capacity
        flat = (kept + heads.view(n_rows, s.kv_heads, 1)).flatten()
        for name, source in (("keys", keys), ("values", values)):
            moved = source.reshape(-1, s.head_dim).index_select(0, flat)
            self._put(name, rows, whole, index, moved.view(n_rows, s.kv_heads, n_kept, s.head_dim))
        for name, extra in (("positions", positions), ("mass", mass)):
            if extra is not None:
                moved = extra.reshape(-1).index_select(0, flat)
                self._put(name, rows, whole, index, moved.view(n_rows, s.kv_heads, n_kept))

    def _put(self, name: str, rows: list[int], whole: bool, index: Tensor, moved: Tensor) -> None:
        target: Tensor = getattr(self, name)
        moved = moved.reshape(len(rows), self.shape.layers, *moved.shape[1:])
        n_kept = moved.shape[3]
        if whole:
            target[: len(rows), :, :, :n_kept] = moved
        else:
            target[:, :, :, :n_kept].index_copy_(0, index, moved)

    def _ordered_queries(self, rows: list[int], n_queries: int) -> Tensor:
        """The rows' most recent queries, oldest first: the ring is unrolled per row."""
        if self.queries is None:
            raise RuntimeError("a store whose rows are evicted needs KVShape.observation > 0")
        s, ring = self.shape, self.shape.observation
        last = self.logical[rows][:, None] - n_queries + np.arange(n_queries)
        heads = s.layers * s.q_heads
        lines = np.asarray(rows)[:, None] * heads + np.arange(heads)
        flat = (lines[:, :, None] * ring + (last % ring)[:, None, :]).ravel()
        index = torch.from_numpy(flat).to(s.device)
        ordered = self.queries.view(-1, s.head_dim).index_select(0, index)
        return ordered.view(len(rows) * s.layers, s.q_heads, n_queries, s.head_dim)

"""Forks: where the caches of the drafts lie that decode now, and what is done to them there.

Two layouts behind one interface: a row for each fork (`RowForks`; with an evictor every fork loses
other entries), and packs of forks that share their prefix (`PackedForks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.packs import EVERYBODY, NOBODY, WIDTH, PackedBatch, places, widths
from kvrescue.engine.runner import Runner
from kvrescue.engine.sequence import Draft, HeldFork
from kvrescue.engine.slots import KVBlock, SlotStore

__all__ = ["Forks", "PackedForks", "RowForks", "forks_for"]

_AHEAD: Final = 32
"""Steps that a row which is full gets room for."""


class Forks(Protocol):
    """Forks 0, 1, .. that decode one token at a time.

    A fork is a copy of its parent: the parked row may be extended or freed while forks of it live.
    """

    store: SlotStore

    @property
    def rows(self) -> int:
        """Rows of the store that hold forks: the first ones."""

    @property
    def lengths(self) -> np.ndarray:
        """[forks] entries that each sees."""

    def fork(self, parked: SlotStore, row: int, count: int) -> None:
        """Add `count` forks of a parked row."""

    def step(self, tokens: np.ndarray) -> Tensor:
        """Feed each fork its token [forks]; hidden states [forks, hidden], to be read before the
        next call."""

    def sick(self, hidden: Tensor) -> list[int]:
        """Forks whose hidden states are not finite; see `Runner.sick`."""

    def evict(self) -> np.ndarray:
        """Evict where due; entries dropped by fork."""

    def hold(self, drafts: Mapping[int, Draft]) -> list[HeldFork]:
        """Copy out the caches of some forks, given with their drafts."""

    def remove(self, forks: Sequence[int]) -> list[int]:
        """Drop forks; the rest are numbered anew: fork i is then what fork `result[i]` was."""

    def clear(self) -> None:
        """Drop all."""


class RowForks:
    """Fork i is row i."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.store = runner.store(0)
        self.rows = 0

    @property
    def lengths(self) -> np.ndarray:
        return self.store.length[: self.rows]

    def fork(self, parked: SlotStore, row: int, count: int) -> None:
        first, self.rows = self.rows, self.rows + count
        self.store.reserve(self.rows, int(parked.length[row]) + 1)
        self.store.broadcast_from(parked, row, first, count)

    def step(self, tokens: np.ndarray) -> Tensor:
        return self.runner.decode(self.store, tokens)[:, -1]

    def sick(self, hidden: Tensor) -> list[int]:
        return self.runner.sick(self.store, hidden)

    def evict(self) -> np.ndarray:
        return self.runner.evict(self.store, self.rows)

    def hold(self, drafts: Mapping[int, Draft]) -> list[HeldFork]:
        if not drafts:
            return []
        start = min(0 if d.evicted else d.fork_length for d in drafts.values())
        block = self.store.export(list(drafts), start)
        counters = (self.store.length, self.store.logical, self.store.tracked)
        held: list[HeldFork] = []
        for j, (i, draft) in enumerate(drafts.items()):
            length, logical, tracked = (int(counter[i]) for counter in counters)
            held.append(HeldFork(block, j, length, logical, draft.audit, tracked=tracked))
        return held

    def remove(self, forks: Sequence[int]) -> list[int]:
        """Swap-remove: the last rows move into the gaps."""
        gone, survivors = set(forks), self.rows - len(set(forks))
        gaps = [i for i in sorted(gone) if i < survivors]
        movers = [i for i in range(survivors, self.rows) if i not in gone]
        self.store.copy_from(self.store, movers, gaps)
        order = list(range(survivors))
        for gap, mover in zip(gaps, movers, strict=True):
            order[gap] = mover
        self.rows = survivors
        return order

    def clear(self) -> None:
        self.rows = 0


class PackedForks:
    """Up to `width` forks of a parked row share a row; see `kvrescue.engine.packs`.

    Forks are sorted by row. A fork that ends leaves its entries behind, which nobody sees; once
    they are more than half of what the pack has written, the rest moves together.
    """

    def __init__(self, runner: Runner, width: int = WIDTH) -> None:
        self.runner, self.width = runner, width
        self.store = runner.store(0)
        self.rows = 0
        self.owner = self._nobody()
        self.row = np.zeros(0, dtype=np.int64)
        self.member = np.zeros(0, dtype=np.int64)
        self.lengths = np.zeros(0, dtype=np.int64)
        self.start = np.zeros(0, dtype=np.int64)
        """[forks] entries of each's prefix."""
        self.batch: PackedBatch | None = None
        """Of the last step; None: forks have come or gone since."""

    def _nobody(self) -> Tensor:
        size, device = (self.store.rows, self.store.capacity), self.store.shape.device
        return torch.full(size, NOBODY, dtype=torch.int8, device=device)

    def _reserve(self, rows: int, capacity: int) -> None:
        self.store.reserve(rows, capacity)
        owner = self.owner
        if owner.shape != (self.store.rows, self.store.capacity):
            self.owner = self._nobody()
            self.owner[: owner.shape[0], : owner.shape[1]] = owner
            self.batch = None

    def fork(self, parked: SlotStore, row: int, count: int) -> None:
        length = int(parked.length[row])
        sizes = list(widths(count, self.width))
        first, self.rows = self.rows, self.rows + len(sizes)
        self._reserve(self.rows, length + max(sizes, default=0))
        self.store.broadcast_from(parked, row, first, len(sizes))
        self.owner[first : self.rows] = NOBODY
        self.owner[first : self.rows, :length] = EVERYBODY
        self.row = np.append(self.row, np.repeat(np.arange(first, self.rows), sizes))
        self.member = np.append(self.member, places(np.array(sizes, dtype=np.int64)))
        self.lengths = np.append(self.lengths, np.full(count, length))
        self.start = np.append(self.start, np.full(count, length))
        self.batch = None

    def step(self, tokens: np.ndarray) -> Tensor:
        longest, most = int(self.store.length[: self.rows].max()), int(np.bincount(self.row).max())
        if longest + most > self.store.capacity:
            self._reserve(self.store.rows, longest + _AHEAD * most)
        batch = self.batch
        if batch is None or longest + most > batch.reach:
            batch = PackedBatch(self.store, self.owner, self.row, self.member)
            self.batch = batch
        batch.begin(self.lengths)
        hidden = self.runner.feed(batch, tokens[None])[0]
        self.lengths = self.lengths + 1
        return hidden

    def sick(self, hidden: Tensor) -> list[int]:
        """A pack is of one proposal, which fails as a whole."""
        return self.runner.sick(self.store, hidden, self.row)

    def evict(self) -> np.ndarray:
        return np.zeros(len(self.row), dtype=np.int64)

    def hold(self, drafts: Mapping[int, Draft]) -> list[HeldFork]:
        held: list[HeldFork] = []
        for i, draft in drafts.items():
            row, length = int(self.row[i]), int(self.lengths[i])
            own = (self.owner[row] == int(self.member[i])).nonzero()[:, 0]
            entries = {
                name: values[row].index_select(2, own)[None]
                for name, values in self.store.entries.items()
            }
            block = KVBlock(draft.fork_length, entries, {})
            held.append(HeldFork(block, 0, length, length, draft.audit))
        return held

    def remove(self, forks: Sequence[int]) -> list[int]:
        """Forks leave their packs; where packs have ended, the last rows move into the gaps."""
        kept = np.setdiff1d(np.arange(len(self.row)), np.asarray(forks, dtype=np.int64))
        left = np.unique(self.row[kept])
        survivors = len(left)
        gaps = np.setdiff1d(np.arange(survivors), left)
        movers = left[left >= survivors]
        self.store.copy_from(self.store, movers.tolist(), gaps.tolist())
        self.owner[torch.from_numpy(gaps)] = self.owner[torch.from_numpy(movers)]
        now = np.arange(self.rows)
        now[movers] = gaps
        order = kept[np.argsort(now[self.row[kept]], kind="stable")]
        self.row, self.rows = now[self.row[order]], survivors
        self.member, self.lengths = self.member[order], self.lengths[order]
        self.start = self.start[order]
        self.batch = None
        self._compact()
        found: list[int] = order.tolist()
        return found

    def _compact(self) -> None:
        """Close the gaps of packs whose own entries are mostly those of forks that have ended."""
        if not self.rows:
            return
        first = np.unique(self.row, return_index=True)[1]
        live = np.bincount(self.row, self.lengths - self.start).astype(np.int64)
        start, length = self.start[first], self.store.length
        for row in np.flatnonzero(2 * live < length[: self.rows] - start).tolist():
            begin, stop = int(start[row]), int(start[row] + live[row])
            members = torch.from_numpy(self.member[self.row == row]).to(self.owner.device)
            own = self.owner[row, begin:]
            kept = torch.isin(own, members.to(own.dtype)).nonzero()[:, 0]
            for values in self.store.entries.values():
                tail = values[row, :, :, begin:]
                tail[:, :, : len(kept)] = tail.index_select(2, kept)
            self.owner[row, begin:stop] = own[kept]
            self.owner[row, stop:] = NOBODY
            length[row] = stop

    def clear(self) -> None:
        self.rows = 0
        self.row, self.member = self.row[:0], self.member[:0]
        self.lengths, self.start = self.lengths[:0], self.start[:0]
        self.batch = None


def forks_for(runner: Runner) -> Forks:
    """In the layout that the engine's options ask for."""
    return PackedForks(runner) if runner.shares else RowForks(runner)

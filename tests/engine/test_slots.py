"""The slot store as a stateful machine against a naive list-of-tensors model (laws 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from torch import Tensor

from kvrescue.engine.adapter import ForwardBatch
from kvrescue.engine.eviction import Eviction
from kvrescue.engine.slots import KVBlock, SlotStore
from kvrescue.evictors import RKV, Evictor, RandomEviction
from kvrescue.evictors.base import KVSlice
from tests.engine.models import shape_for

LAYERS, HEADS, GROUP, DIM, RING = 2, 2, 2, 4, 3


@dataclass
class Model:
    """One row as plain lists: entries[layer][head] = [(key, value, position), ...]."""

    entries: list[list[list[tuple[Tensor, Tensor, int]]]] = field(
        default_factory=lambda: [[[] for _ in range(HEADS)] for _ in range(LAYERS)]
    )
    queries: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    logical: int = 0

    def copy(self) -> Model:
        return Model(
            [[list(h) for h in layer] for layer in self.entries],
            [list(q) for q in self.queries],
            self.logical,
        )

    @property
    def length(self) -> int:
        return len(self.entries[0][0])

    def evict(self, evictor: Evictor) -> None:
        if self.length < evictor.bound + evictor.interval:
            return
        for layer in range(LAYERS):
            heads = self.entries[layer]
            kept = evictor.select(
                KVSlice(
                    keys=torch.stack([torch.stack([e[0] for e in h]) for h in heads])[None],
                    queries=torch.stack(self.queries[layer][-RING:], dim=1)[None],
                    positions=torch.tensor([[[e[2] for e in h] for h in heads]]),
                )
            )[0]
            for h, index in enumerate(kept.tolist()):
                heads[h] = [heads[h][i] for i in index]


@dataclass
class Held:
    """An exported row: equal to row `row` of that version below slot `start`."""

    block: KVBlock
    model: Model
    row: int
    version: int
    start: int
    tracked: int


class SlotMachine(RuleBasedStateMachine):
    """Feed ragged chunks, evict, fork, move, export and adopt, in any order."""

    evictor: Evictor = RKV(budget=3, window=2, observation=RING, kernel_size=3)
    rows = Bundle("rows")
    held = Bundle("held")

    @initialize()
    def start(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.eviction = Eviction(self.evictor)
        capacity = self.evictor.bound + self.evictor.interval
        shape = shape_for(self.evictor, self.eviction.tracker, LAYERS, HEADS, GROUP, DIM)
        self.store = SlotStore(shape, 1, capacity)
        self.models: dict[int, Model] = {}
        self.versions: dict[int, int] = {}

    def _touch(self, row: int) -> None:
        self.versions[row] = self.versions.get(row, 0) + 1

    @rule(target=rows)
    def new_row(self) -> int:
        row = len(self.models)
        self.store.reserve(row + 1, self.store.capacity)
        self.models[row] = Model()
        self._touch(row)
        return row

    @rule(counts=st.lists(st.integers(0, 4), min_size=1, max_size=4), evict=st.booleans())
    def feed(self, counts: list[int], evict: bool) -> None:
        """A forward pass over the first rows, as the adapter does it, then maybe eviction."""
        n = min(len(counts), len(self.models))
        width = max(counts[:n], default=0)
        if not width:
            return
        batch = ForwardBatch(self.store, np.array(counts[:n]), width)
        for layer in range(LAYERS):
            q = torch.randn(n, HEADS * GROUP, width, DIM, generator=self.generator)
            k, v = torch.randn(2, n, HEADS, width, DIM, generator=self.generator)
            batch.record(layer, q, k, v)
            for row in range(n):
                model = self.models[row]
                for t in range(counts[row]):
                    model.queries[layer].append(q[row, :, t])
                    for h in range(HEADS):
                        entry = (k[row, h, t], v[row, h, t], model.logical + t)
                        model.entries[layer][h].append(entry)
        batch.advance()
        for row in range(n):
            self.models[row].logical += counts[row]
            if counts[row]:
                self._touch(row)
        if evict:
            self.eviction.fire(self.store, n)
            for row in range(n):
                before = self.models[row].length
                self.models[row].evict(self.evictor)
                if self.models[row].length != before:
                    self._touch(row)

    @rule(target=rows, source=rows, count=st.integers(1, 3))
    def fork(self, source: int, count: int) -> object:
        first = len(self.models)
        self.store.reserve(first + count, self.store.capacity)
        self.store.broadcast_from(self.store, source, first, count)
        for row in range(first, first + count):
            self.models[row] = self.models[source].copy()
            self._touch(row)
        return multiple(*range(first, first + count))

    @rule(source=rows, target_row=rows)
    def move(self, source: int, target_row: int) -> None:
        self.store.copy_from(self.store, [source], [target_row])
        self.models[target_row] = self.models[source].copy()
        self._touch(target_row)

    @rule(target=held, row=rows, start=st.integers(0, 4))
    def export(self, row: int, start: int) -> Held:
        start = min(start, self.models[row].length)
        block = self.store.export([row], start)
        model = self.models[row].copy()
        tracked = int(self.store.tracked[row])
        return Held(block, model, row, self.versions[row], start, tracked)

    @rule(fork=consumes(held))
    def adopt(self, fork: Held) -> None:
        """A block may be adopted by a row that equals its parent below `start`."""
        row, model = fork.row, fork.model
        if fork.start and self.versions[row] != fork.version:
            return
        self.store.adopt(row, fork.block, 0, model.length, model.logical, tracked=fork.tracked)
        self.models[row] = model.copy()
        self._touch(row)

    @invariant()
    def rows_equal_their_models(self) -> None:
        for row, model in getattr(self, "models", {}).items():
            n = model.length
            assert int(self.store.length[row]) == n
            assert int(self.store.logical[row]) == model.logical
            names = ("positions", "keys", "values")
            positions, keys, values = (self.store.in_order(name, row) for name in names)
            for layer in range(LAYERS):
                for h in range(HEADS):
                    entries = model.entries[layer][h]
                    assert positions[layer, h].tolist() == [e[2] for e in entries]
                    for i, (key, value, _) in enumerate(entries):
                        assert torch.equal(keys[layer, h, i], key)
                        assert torch.equal(values[layer, h, i], value)


class TrackedMachine(SlotMachine):
    """Entries leave one at a time or a few at once, and a tracker knows their scores."""

    evictor = RKV(budget=7, window=5, observation=RING, kernel_size=3, interval=2)


class UntrackedMachine(SlotMachine):
    """Entries leave a few at a time, without a tracker."""

    evictor = RandomEviction(budget=7, window=5, observation=RING)


SETTINGS = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestCompaction = SlotMachine.TestCase
TestTracked = TrackedMachine.TestCase
TestUntracked = UntrackedMachine.TestCase
TestCompaction.settings = TestTracked.settings = TestUntracked.settings = SETTINGS

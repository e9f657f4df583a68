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
from kvrescue.engine.slots import KVBlock, KVShape, SlotStore
from kvrescue.evictors import RKV
from kvrescue.evictors.base import KVSlice

LAYERS, HEADS, GROUP, DIM, RING = 2, 2, 2, 4, 3
EVICTOR = RKV(budget=3, window=2, observation=RING, kernel_size=3)
SHAPE = KVShape(
    layers=LAYERS,
    q_heads=HEADS * GROUP,
    kv_heads=HEADS,
    head_dim=DIM,
    dtype=torch.float32,
    device=torch.device("cpu"),
    observation=RING,
)


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

    def evict(self) -> None:
        if self.length < EVICTOR.bound + EVICTOR.interval:
            return
        for layer in range(LAYERS):
            heads = self.entries[layer]
            kept = EVICTOR.select(
                KVSlice(
                    keys=torch.stack([torch.stack([e[0] for e in h]) for h in heads])[None],
                    queries=torch.stack(self.queries[layer][-RING:], dim=1)[None],
                )
            )[0]
            for h, index in enumerate(kept.tolist()):
                heads[h] = [heads[h][i] for i in index]


class SlotMachine(RuleBasedStateMachine):
    """Feed ragged chunks, evict, fork, move, export and adopt, in any order."""

    rows = Bundle("rows")
    held = Bundle("held")

    @initialize()
    def start(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.store = SlotStore(SHAPE, 1, EVICTOR.bound + EVICTOR.interval)
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
            self.store.evict(EVICTOR, n)
            for row in range(n):
                before = self.models[row].length
                self.models[row].evict()
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
    def export(self, row: int, start: int) -> tuple[KVBlock, Model, int, int, int]:
        start = min(start, self.models[row].length)
        block = self.store.export([row], start)
        model = self.models[row].copy()
        return block, model, row, self.versions[row], start

    @rule(fork=consumes(held))
    def adopt(self, fork: tuple[KVBlock, Model, int, int, int]) -> None:
        """A block may be adopted by a row that equals its parent below `start`."""
        block, model, row, version, start = fork
        if start and self.versions[row] != version:
            return
        self.store.adopt(row, block, 0, model.length, model.logical)
        self.models[row] = model.copy()
        self._touch(row)

    @invariant()
    def rows_equal_their_models(self) -> None:
        for row, model in getattr(self, "models", {}).items():
            n = model.length
            assert int(self.store.length[row]) == n
            assert int(self.store.logical[row]) == model.logical
            for layer in range(LAYERS):
                for h in range(HEADS):
                    entries = model.entries[layer][h]
                    positions = self.store.positions
                    assert positions is not None
                    assert positions[row, layer, h, :n].tolist() == [e[2] for e in entries]
                    for i, (key, value, _) in enumerate(entries):
                        assert torch.equal(self.store.keys[row, layer, h, i], key)
                        assert torch.equal(self.store.values[row, layer, h, i], value)


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)

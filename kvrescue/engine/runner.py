"""Runner: one model with its evictor, stepping over any slot store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.adapter import ModelAdapter
from kvrescue.engine.eviction import Eviction
from kvrescue.engine.graphs import graphs_for
from kvrescue.engine.packs import PackedBatch, shares_prefix
from kvrescue.engine.slots import SlotStore
from kvrescue.errors import COMPONENT_FAILURES, NonFiniteLogitsError
from kvrescue.evictors.base import Evictor
from kvrescue.evictors.firing import Firing, Watch, When

__all__ = ["Runner", "failing", "tell"]


class Runner:
    """What parked and live rows share: forward passes, eviction and their counters."""

    def __init__(
        self,
        adapter: ModelAdapter,
        evictor: Evictor | None,
        graphs: bool = False,
        share_prefix: bool | None = None,
    ) -> None:
        self.adapter = adapter
        if evictor is not None and not evictor.bounded:
            evictor = None  # keeping everything is what a store does by itself
        self.evictor = evictor
        self.eviction = Eviction(evictor) if evictor else None
        self.shape = adapter.shape(
            observation=evictor.observation if evictor else 0,
            attention=bool(evictor and evictor.needs_attention),
            tracker=self.eviction.tracker if self.eviction else None,
        )
        self.shares = shares_prefix(
            share_prefix, adapter.name, adapter.device, evicts=evictor is not None, graphs=graphs
        )
        """Whether forks that decode share their prefix."""
        self.graphs = graphs_for(adapter, self.shape) if graphs else None
        self.tokens_fed = 0
        """Tokens that went through the model, padding not counted."""

    def store(self, rows: int, capacity: int | None = None) -> SlotStore:
        """A new store; bounded by the evictor when `capacity` is not given."""
        if capacity is None:
            capacity = self.evictor.bound + self.evictor.interval if self.evictor else 0
        return SlotStore(self.shape, rows, capacity)

    def forward(
        self,
        store: SlotStore,
        tokens: np.ndarray,
        counts: np.ndarray,
        branches: np.ndarray | None = None,
    ) -> Tensor:
        """Hidden states [rows, width, hidden] of right-padded `tokens` [rows, width]."""
        self.tokens_fed += int(counts.sum())
        return self.adapter.forward(store, tokens, counts, branches)

    def decode(self, store: SlotStore, tokens: np.ndarray) -> Tensor:
        """Hidden states [rows, 1, hidden] of one token per row, `tokens` [rows]; they are read
        before the next call."""
        if self.graphs is not None:
            self.tokens_fed += len(tokens)
            return self.graphs.step(store, tokens)
        return self.forward(store, tokens[:, None], np.ones(len(tokens), dtype=np.int64))

    def feed(self, batch: PackedBatch, tokens: np.ndarray) -> Tensor:
        """Hidden states [1, forks, hidden] of one token per fork, `tokens` [1, forks]."""
        self.tokens_fed += tokens.size
        return self.adapter.feed(batch, tokens)

    def evict(self, store: SlotStore, count: int) -> np.ndarray:
        """Evict from the first `count` rows where due; returns entries dropped per row."""
        if self.eviction is None:
            return np.zeros(count, dtype=np.int64)
        return self.eviction.fire(store, count)

    def sick(self, store: SlotStore, hidden: Tensor, rows: np.ndarray | None = None) -> list[int]:
        """Lines of `hidden` [lines, ..., hidden] that are not finite; their cache is cleaned.

        Line i is of row i, or of `rows[i]`.

        One such row must fail its own caller only: not the eviction of the batch, nor whoever
        uses the row next.
        """
        finite = torch.isfinite(hidden).flatten(1).all(dim=1)
        if bool(finite.all()):
            return []
        lines: list[int] = finite.logical_not().nonzero()[:, 0].tolist()
        store.scrub(lines if rows is None else np.unique(rows[lines]).tolist())
        return lines

    def non_finite(self) -> NonFiniteLogitsError:
        return NonFiniteLogitsError(
            f"{self.adapter.name} returned NaN or infinite logits; check the checkpoint and the "
            f"dtype ({self.adapter.dtype})"
        )


def tell(
    watch: Watch,
    store: SlotStore,
    row: int,
    dropped: np.ndarray,
    when: When,
    candidate: int | None = None,
) -> None:
    """Tell of the eviction from a row, of which `dropped[row]` entries have just left."""

    def read() -> np.ndarray:
        found: np.ndarray = store.in_order("positions", row).cpu().numpy().copy()
        return found

    lengths = int(store.logical[row]), int(store.length[row])
    Firing(when, candidate, int(dropped[row]), *lengths, read).tell(watch)


@contextlib.contextmanager
def failing(futures: Iterable[asyncio.Future[Any]]) -> Iterator[None]:
    """A failure of work that left its queue reaches those who wait for it."""
    waiting = list(futures)
    try:
        yield
    except COMPONENT_FAILURES as error:
        for future in waiting:
            if not future.done():
                future.set_exception(error)

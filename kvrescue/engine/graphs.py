"""Decode steps that are captured once and replayed: CUDA graphs.

A decode step is some hundred small kernels, and launching them one by one from Python takes longer
than many of them run. What a step does depends on two numbers only, how many rows decode and how
far attention reads; both are rounded up to a few buckets, and each pair is captured once. All that
changes from step to step (tokens, positions, slots) stands in one tensor at a fixed address.

A row that only fills a bucket up lies behind the live rows: what it writes is read by nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.adapter import ModelAdapter
from kvrescue.engine.slots import KVShape, SlotStore, width_bucket
from kvrescue.errors import ConfigError, PolicyError

__all__ = ["CudaGraphs", "GraphAPI", "GraphedDecoder", "StaticBatch", "graphs_for"]

MOST: Final = 48
"""Graphs kept at once; the one that was used longest ago makes room."""

_HOST_ROPE: Final = ("dynamic", "longrope")
"""Rotary embeddings that ask the positions for their maximum on the host."""


class GraphAPI(Protocol):
    """What is needed of a device's graphs."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` launches; returns what launches it again, on the same tensors.

        `work` may be run any number of times meanwhile.
        """


class CudaGraphs:
    """torch.cuda.CUDAGraph; graphs never run at the same time, so they share their memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            current, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                work()  # libraries set themselves up outside of a graph
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
            self._pool = graph.pool() if self._pool is None else self._pool
        replay: Callable[[], None] = graph.replay
        return replay


class StaticBatch:
    """One token for each of the first `rows` rows of a store; `slot_attention` takes it for a
    `ForwardBatch`. Nothing in it is read from the host once it is filled."""

    def __init__(self, store: SlotStore, rows: int, stop: int) -> None:
        device = store.shape.device
        self.store, self.rows, self.stop = store, rows, stop
        self.numbers = torch.zeros((4, rows), dtype=torch.int64, device=device)
        """Tokens, logical positions, slots and places in the ring of queries."""
        self.tokens, self.positions, self.slots = (self.numbers[i, :, None] for i in range(3))
        self.mask: Tensor | None = None
        self._steps = torch.arange(stop, device=device)
        self._staged = np.zeros((4, rows), dtype=np.int64)

    def fill(self, tokens: np.ndarray) -> None:
        """Take in the next token of each live row, [live]."""
        live, store, staged = len(tokens), self.store, self._staged
        staged[:] = 0
        staged[0, :live] = tokens
        staged[1, :live] = store.logical[:live]
        staged[2, :live] = store.length[:live]
        staged[3, :live] = staged[1, :live] % max(1, store.shape.observation)
        self.numbers.copy_(torch.from_numpy(staged))

    def begin(self) -> None:
        """What a step needs once, before its first layer."""
        self.mask = self._steps <= self.slots[:, :, None]
        for name, value in (("positions", self.positions), ("order", self.slots)):
            if (target := self.store.entries.get(name)) is not None:
                index = self.slots[:, None, None, :].expand(-1, *target.shape[1:3], -1)
                new = value.to(target.dtype)[:, None, None, :].expand_as(index)
                target[: self.rows].scatter_(3, index, new)

    def record(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write the new entries of a layer; returns its keys and values up to `stop`."""
        store = self.store
        keys, values = store.keys[: self.rows, layer], store.values[: self.rows, layer]
        index = self.slots[:, None, :, None].expand_as(key)
        keys.scatter_(2, index, key)
        values.scatter_(2, index, value)
        if (ring := store.heads.get("queries")) is not None:
            at = self.numbers[3][:, None, None, None].expand_as(query)
            ring[: self.rows, layer].scatter_(2, at, query)
        return keys[:, :, : self.stop], values[:, :, : self.stop]


@dataclass(slots=True)
class _Step:
    batch: StaticBatch
    replay: Callable[[], None]
    hidden: Tensor


class GraphedDecoder:
    """Runs decode steps of one store from graphs, and captures what it has no graph of."""

    def __init__(self, adapter: ModelAdapter, api: GraphAPI) -> None:
        self.adapter, self.api = adapter, api
        self.captured = 0
        """Graphs made so far."""
        self._steps: OrderedDict[tuple[int, int], _Step] = OrderedDict()
        self._keys: Tensor | None = None

    @torch.no_grad()
    def step(self, store: SlotStore, tokens: np.ndarray) -> Tensor:
        """Feed `tokens` [live] to the first rows; hidden states [live, 1, hidden], which the next
        step overwrites.

        Raises:
            PolicyError: the device cannot capture a step; the store is as it was.
        """
        live = len(tokens)
        rows = rows_bucket(live)
        wanted = int(store.length[:live].max()) + 1
        stop = store.capacity if store.shape.evicts else width_bucket(wanted)
        store.reserve(max(rows, store.rows), max(wanted, stop))
        if self._keys is not store.keys:  # the store has moved: graphs would write where it was
            self._steps.clear()
            self._keys = store.keys
        stop = store.capacity if store.shape.evicts else stop
        found = self._steps.get((rows, stop))
        if found is None:
            batch = StaticBatch(store, rows, stop)
            batch.fill(tokens)
            try:
                found = self._steps[rows, stop] = self._capture(batch)
            except RuntimeError as error:
                raise PolicyError(
                    f"{self.adapter.name}: graphs = True: decode steps cannot be captured: "
                    f"{error}; leave it out"
                ) from error
            while len(self._steps) > MOST:
                self._steps.popitem(last=False)
        self._steps.move_to_end((rows, stop))
        found.batch.fill(tokens)
        found.replay()
        store.length[:live] += 1
        store.logical[:live] += 1
        return found.hidden[:live]

    def _capture(self, batch: StaticBatch) -> _Step:
        config, device = self.adapter.config, self.adapter.device
        size = (batch.rows, 1, int(config.hidden_size))
        hidden = torch.zeros(size, dtype=self.adapter.dtype, device=device)

        def work() -> None:
            batch.begin()
            out = self.adapter.decoder(
                input_ids=batch.tokens,
                position_ids=batch.positions,
                use_cache=False,
                slots=batch,
            )
            hidden.copy_(out.last_hidden_state)

        replay = self.api.capture(work)
        self.captured += 1
        return _Step(batch, replay, hidden)


def rows_bucket(rows: int) -> int:
    """Powers of two up to 32, then multiples of 32."""
    return 1 << (rows - 1).bit_length() if rows <= 32 else -(-rows // 32) * 32


def graphs_for(adapter: ModelAdapter, shape: KVShape) -> GraphedDecoder:
    """A decoder of the model.

    Raises:
        ConfigError: the device or the model does not allow one; it says why.
    """
    parameters = getattr(adapter.config, "rope_parameters", None) or {}
    rope = str(parameters.get("rope_type", "default"))
    why = None
    if adapter.device.type != "cuda":
        why = f"the model is on {adapter.device.type}, and graphs need CUDA"
    elif shape.attention:
        why = "the evictor accumulates attention, which is not captured"
    elif rope in _HOST_ROPE:
        why = f"rotary embeddings of type {rope!r} read positions on the host"
    if why is not None:
        raise ConfigError(f"{adapter.name}: graphs = True: {why}; leave it out")
    return GraphedDecoder(adapter, CudaGraphs(adapter.device))

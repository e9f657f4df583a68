"""What eviction needs of attention: the most recent queries, and the layout of the paged cache.

Queries are seen where every backend gets them, at `impl.forward(layer, query, ...)` of each
attention layer: the method is wrapped on the instance, so that no backend has to be registered or
subclassed and a second engine in the process is not touched.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.moves import move_at
from kvrescue.errors import ConfigError

__all__ = ["LAYOUTS", "FusedHeadLayout", "Layout", "QueryRing", "TransposedKeyLayout", "capture"]


Entries = tuple[Tensor, Tensor, Tensor]
"""Where entries lie: their blocks, KV heads and places within the block, each [entries] int64."""


class Layout(Protocol):
    """How one layer's cache [blocks, kv_heads, block_size, 2 * head_dim] is to be read."""

    name: str

    def keys(self, cache: Tensor, blocks: Tensor) -> Tensor:
        """[rows, kv_heads, n * block_size, head_dim] of `blocks` [rows, n], the entries of the
        rows' blocks in order; a copy."""

    def values(self, cache: Tensor, blocks: Tensor) -> Tensor:
        """The same of the values."""

    def move(self, cache: Tensor, source: Entries, target: Entries) -> None:
        """Copy keys and values of the entries at `source` to `target`."""


class FusedHeadLayout:
    """Keys and values of an entry side by side (FlashAttention, Triton, FlashInfer); the cache
    may be a strided view."""

    name = "fused head"

    def keys(self, cache: Tensor, blocks: Tensor) -> Tensor:
        found = cache[..., : cache.shape[3] // 2].index_select(0, blocks.flatten())
        return _in_rows(found, blocks)

    def values(self, cache: Tensor, blocks: Tensor) -> Tensor:
        found = cache[..., cache.shape[3] // 2 :].index_select(0, blocks.flatten())
        return _in_rows(found, blocks)

    def move(self, cache: Tensor, source: Entries, target: Entries) -> None:
        move_at(cache, source, target)


class TransposedKeyLayout:
    """vLLM's CPU kernels: per block and head the keys [head_dim, block_size], then the values
    [block_size, head_dim]."""

    name = "transposed key"

    def _views(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [blocks, kv_heads, head_dim, block_size], values [.., block_size, head_dim]."""
        blocks, heads, size, width = cache.shape
        halves = cache.view(blocks, heads, 2, size * width // 2)
        keys = halves[:, :, 0].unflatten(2, (width // 2, size))
        return keys, halves[:, :, 1].unflatten(2, (size, width // 2))

    def keys(self, cache: Tensor, blocks: Tensor) -> Tensor:
        found = self._views(cache)[0].index_select(0, blocks.flatten())
        return _in_rows(found.transpose(2, 3), blocks)

    def values(self, cache: Tensor, blocks: Tensor) -> Tensor:
        return _in_rows(self._views(cache)[1].index_select(0, blocks.flatten()), blocks)

    def move(self, cache: Tensor, source: Entries, target: Entries) -> None:
        keys, values = self._views(cache)
        keys = keys.transpose(2, 3)
        keys[target] = keys[source]
        values[target] = values[source]


def _in_rows(found: Tensor, blocks: Tensor) -> Tensor:
    """Blocks [rows * n, kv_heads, block_size, head_dim] in a row after one another."""
    by_row: Tensor = found.unflatten(0, tuple(blocks.shape))
    return by_row.transpose(1, 2).flatten(2, 3)


LAYOUTS: tuple[Layout, ...] = (TransposedKeyLayout(), FusedHeadLayout())
"""Every layout that is known; the start-up self-test finds out which one is in use."""


class QueryRing:
    """The last `observation` queries of every request and state, a ring by logical position.

    `queries` [layers, slots * observation, q_heads, head_dim]; who owns which slot is told by
    `slots`, keyed by the caller.
    """

    def __init__(
        self,
        layers: int,
        observation: int,
        q_heads: int,
        head_dim: int,
        *,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.observation = observation
        size = (layers, slots * observation, q_heads, head_dim)
        self.queries = torch.zeros(size, dtype=dtype, device=device)
        self.slots: dict[str, int] = {}
        self.calls = 0
        """Layers that delivered queries since the last `arm`."""
        self._free = list(range(slots - 1, -1, -1))
        self._take: Tensor | None = None
        self._put: Tensor | None = None

    def slot(self, owner: str) -> int:
        """The owner's slot, a new one if it has none."""
        if owner not in self.slots:
            if not self._free:
                self._grow()
            self.slots[owner] = self._free.pop()
        return self.slots[owner]

    def _grow(self) -> None:
        old = self.queries.shape[1] // self.observation
        self.queries = torch.cat([self.queries, torch.zeros_like(self.queries)], dim=1)
        self._free = list(range(2 * old - 1, old - 1, -1))

    def copy(self, source: str, target: str) -> None:
        """`target` gets its own copy of the queries of `source`, if that has any."""
        if source not in self.slots:
            self.drop(target)
            return
        size, old, new = self.observation, self.slots[source], self.slot(target)
        ring = self.queries
        ring[:, new * size : (new + 1) * size] = ring[:, old * size : (old + 1) * size]

    def rename(self, old: str, new: str) -> None:
        """The slot of `old`, if it has one, belongs to `new`."""
        if old in self.slots:
            self.slots[new] = self.slots.pop(old)

    def drop(self, owner: str) -> None:
        """Free the owner's slot, if it has one."""
        if owner in self.slots:
            self._free.append(self.slots.pop(owner))

    def arm(self, take: Sequence[int], put: Sequence[int], tokens: int) -> None:
        """In the next forward pass, which is of `tokens` tokens, the queries of those in `take`
        (ascending) go to places `put`."""
        device = self.queries.device
        all_of_them = len(take) == tokens
        self._take = None if all_of_them else torch.tensor(take).to(device, non_blocking=True)
        self._put = torch.tensor(put).to(device, non_blocking=True)
        self.calls = 0

    def disarm(self) -> None:
        self._take = self._put = None
        self.calls = 0

    def record(self, layer: int, query: Tensor) -> None:
        """Called by every layer with its queries [tokens, q_heads * head_dim or (.., ..)]; there
        may be further rows, which pad the batch."""
        if self._put is None:
            return
        take, place = self._take, self.queries[layer]
        query = query[: len(self._put)] if take is None else query.index_select(0, take)
        place.index_copy_(0, self._put, query.reshape(-1, *place.shape[1:]))
        self.calls += 1

    def recent(self, owners: Sequence[str], logical: Sequence[int], count: int) -> Tensor:
        """[layers, owners, q_heads, count, head_dim]: the newest queries, oldest first.

        `logical` are tokens that each owner has seen.
        """
        last = np.asarray(logical)[:, None] - count + np.arange(count)
        slots = np.array([self.slots[owner] for owner in owners])
        flat = (slots[:, None] * self.observation + last % self.observation).ravel()
        index = torch.from_numpy(flat).to(self.queries.device)
        found = self.queries.index_select(1, index)
        by_owner: Tensor = found.unflatten(1, (len(owners), count))
        return by_owner.transpose(2, 3)


def capture(layer: Any, number: int, ring: QueryRing) -> None:
    """From now on `layer` records its queries. Raises ConfigError for an unknown interface."""
    inner = layer.impl.forward
    names = list(inspect.signature(inner).parameters)
    if names[:2] != ["layer", "query"]:
        raise ConfigError(
            f"attention backend {type(layer.impl).__name__}: forward({', '.join(names)}) is not "
            "known to kvrescue; use the supported vLLM version with its default backend"
        )

    def forward(layer_: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        ring.record(number, query)
        return inner(layer_, query, *args, **kwargs)

    layer.impl.forward = forward

"""Eviction on vLLM's paged cache: gather, ask the evictor, compact in temporal order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.policies.vllm.attention import Layout, QueryRing
from kvrescue.policies.vllm.messages import Due

__all__ = ["PagedCache", "DueSequence"]

_PIECE_BYTES = {"cpu": 32 << 20}  # of keys handled at once; bounds the temporary memory
_PIECE_BYTES_ACCELERATOR = 1 << 30


@dataclass(frozen=True, slots=True)
class DueSequence:
    """A sequence to evict from: who it is in the query ring, and its blocks [n] int64."""

    owner: str
    due: Due
    blocks: np.ndarray


class PagedCache:
    """The caches of all layers, and the logical position of every entry.

    `caches`: per layer [blocks, kv_heads, block_size, 2 * head_dim]. `positions` [blocks, layers,
    kv_heads, block_size] int32: entries differ per layer and head once something was evicted.
    """

    def __init__(
        self, evictor: Evictor, layout: Layout, caches: Sequence[Tensor], ring: QueryRing
    ) -> None:
        blocks, heads, self.block_size, width = caches[0].shape
        self.evictor, self.layout, self.caches, self.ring = evictor, layout, caches, ring
        self.heads, self.head_dim = heads, width // 2
        self.positions = torch.zeros(
            (blocks, len(caches), heads, self.block_size),
            dtype=torch.int32,
            device=caches[0].device,
        )

    def note_positions(self, slots: Tensor, positions: Tensor) -> None:
        """New entries at `slots` [tokens] (block * block_size + offset) have these positions."""
        flat = self.positions.flatten(1, 2)
        flat[slots // self.block_size, :, slots % self.block_size] = positions[:, None].to(
            torch.int32
        )

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """What vLLM does to the caches for (source, target) pairs, for the positions."""
        index = torch.tensor(np.asarray(pairs, dtype=np.int64), device=self.positions.device)
        self.positions.index_copy_(0, index[:, 1], self.positions.index_select(0, index[:, 0]))

    @torch.inference_mode()
    def evict(self, sequences: Sequence[DueSequence]) -> dict[str, int]:
        """Evict from every sequence; returns entries dropped per layer and head, by owner."""
        groups: dict[tuple[int, int, int, int], list[DueSequence]] = {}
        for s in sequences:
            seen = min(s.due.logical, self.ring.observation)
            key = (s.due.length, s.due.keep, s.due.prefix, seen)
            groups.setdefault(key, []).append(s)
        for (length, keep, prefix, seen), members in groups.items():
            owners = [s.owner for s in members]
            queries = self.ring.recent(owners, [s.due.logical for s in members], seen)
            used = -(-length // self.block_size)
            blocks = torch.from_numpy(np.stack([s.blocks[:used] for s in members]))
            blocks = blocks.to(self.positions.device)
            for layers in self._pieces(len(members), length):
                self._evict(layers, blocks, queries[layers], length, keep, prefix)
        return {s.owner: s.due.length - s.due.keep for s in sequences}

    def _pieces(self, rows: int, length: int) -> Iterator[slice]:
        size = _PIECE_BYTES.get(self.positions.device.type, _PIECE_BYTES_ACCELERATOR)
        step = max(1, size // (4 * rows * self.heads * length * self.head_dim))
        for start in range(0, len(self.caches), step):
            yield slice(start, min(start + step, len(self.caches)))

    def _evict(
        self, layers: slice, blocks: Tensor, queries: Tensor, length: int, keep: int, prefix: int
    ) -> None:
        """`blocks` [rows, n], `queries` [layers, rows, q_heads, seen, head_dim]."""
        pairs = [self.layout.read(cache, blocks) for cache in self.caches[layers]]
        keys = torch.stack([k for k, _ in pairs])  # [layers, rows, heads, n * block_size, dim]
        values = torch.stack([v for _, v in pairs])
        positions = self.positions[:, layers].index_select(0, blocks.flatten())
        positions = positions.unflatten(0, tuple(blocks.shape))  # [rows, n, layers, heads, size]
        positions = positions.permute(2, 0, 3, 1, 4).flatten(3, 4)
        count = keys.shape[0] * keys.shape[1]
        reads = self.evictor
        kept = reads.select(
            KVSlice(
                keys=keys.flatten(0, 1)[:, :, :length],
                queries=queries.flatten(0, 1),
                values=values.flatten(0, 1)[:, :, :length] if reads.needs_values else None,
                positions=positions.flatten(0, 1)[:, :, :length],
                prefix=torch.full((count,), prefix) if prefix else None,
            )
        )
        kept = kept.unflatten(0, (keys.shape[0], keys.shape[1]))  # [layers, rows, heads, keep]
        # The last block is filled up with entries nobody reads: they lie beyond the length.
        filled = -(-keep // self.block_size)
        pad = filled * self.block_size - keep
        index = torch.nn.functional.pad(kept, (0, pad))
        wide = index[..., None].expand(*index.shape, self.head_dim)
        keys, values = keys.gather(3, wide), values.gather(3, wide)
        target = blocks[:, :filled]
        for i, cache in enumerate(self.caches[layers]):
            self.layout.write(cache, target, keys[i], values[i])
        positions = positions.gather(3, index).unflatten(3, (filled, self.block_size))
        flat = positions.permute(1, 3, 0, 2, 4).flatten(0, 1)
        self.positions[:, layers].index_copy_(0, target.flatten(), flat)

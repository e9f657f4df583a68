"""Eviction on vLLM's paged cache: ask the evictor, and move entries into the freed places.

The newest entries take the places of those that leave, so that whole caches are not moved for the
sake of a few. The order of time is that of the positions, which are noted here; attention does not
ask for it, and what is fed next always lies behind all that is older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.evictors.tensors import rows_at
from kvrescue.policies.vllm.attention import Layout, QueryRing
from kvrescue.policies.vllm.messages import Due

__all__ = ["PagedCache", "DueSequence"]

_PIECE_BYTES = {"cpu": 4 << 20}  # of keys handled at once: they stay in the caches
_PIECE_BYTES_ACCELERATOR = 1 << 30


@dataclass(frozen=True, slots=True)
class DueSequence:
    """A sequence to evict from: who it is in the query ring, and its blocks [n] int64."""

    owner: str
    due: Due
    blocks: np.ndarray


class PagedCache:
    """The caches of all layers, and the logical position of the entries that an eviction left.

    `caches`: per layer [blocks, kv_heads, block_size, 2 * head_dim]. `positions` [blocks, layers,
    kv_heads, block_size] int32, noted for settled entries only (see `Due`).
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

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """What vLLM does to the caches for (source, target) pairs, for the positions."""
        index = torch.tensor(np.asarray(pairs, dtype=np.int64), device=self.positions.device)
        self.positions.index_copy_(0, index[:, 1], self.positions.index_select(0, index[:, 0]))

    @torch.inference_mode()
    def evict(self, sequences: Sequence[DueSequence]) -> None:
        """Cut every sequence down to the entries it is to keep."""
        groups: dict[tuple[int, ...], list[DueSequence]] = {}
        for s in sequences:
            due, seen = s.due, min(s.due.logical, self.ring.observation)
            key = (due.length, due.keep, due.prefix, due.settled, seen)
            groups.setdefault(key, []).append(s)
        for (length, *_, seen), members in groups.items():
            logical = [s.due.logical for s in members]
            queries = self.ring.recent([s.owner for s in members], logical, seen)
            used = -(-length // self.block_size)
            blocks = torch.from_numpy(np.stack([s.blocks[:used] for s in members]))
            blocks = blocks.to(self.positions.device)
            shift = torch.tensor(logical, dtype=torch.int32) - length
            shift = shift.to(self.positions.device)
            for layers in self._pieces(len(members), length):
                self._evict(layers, blocks, queries[layers], shift, members[0].due)

    def positions_of(self, layers: slice, blocks: Tensor, shift: Tensor, due: Due) -> Tensor:
        """[layers, rows, kv_heads, length] of the entries, by place."""
        places = torch.arange(due.length, dtype=torch.int32, device=blocks.device)
        recent = (places + shift[:, None])[None, :, None]  # right for all that is not settled
        shape = (layers.stop - layers.start, len(blocks), self.heads, due.length)
        if not due.settled:
            return recent.expand(shape).contiguous()
        used = -(-due.settled // self.block_size)
        noted = self.positions[:, layers].index_select(0, blocks[:, :used].flatten())
        noted = noted.unflatten(0, (len(blocks), used))  # [rows, n, layers, heads, size]
        noted = noted.permute(2, 0, 3, 1, 4).flatten(3, 4)[..., : due.settled]
        return torch.cat([noted, recent[..., due.settled :].expand(*shape[:3], -1)], dim=3)

    def _pieces(self, rows: int, length: int) -> Iterator[slice]:
        size = _PIECE_BYTES.get(self.positions.device.type, _PIECE_BYTES_ACCELERATOR)
        step = max(1, size // (4 * rows * self.heads * length * self.head_dim))
        for start in range(0, len(self.caches), step):
            yield slice(start, min(start + step, len(self.caches)))

    def _evict(
        self, layers: slice, blocks: Tensor, queries: Tensor, shift: Tensor, due: Due
    ) -> None:
        """`blocks` [rows, n], `queries` [layers, rows, q_heads, seen, head_dim], `shift` [rows]
        position minus place of the entries that came after the last eviction."""
        keep = due.keep
        positions = self.positions_of(layers, blocks, shift, due)
        order = _order(positions, due.settled)
        kept = self._select(layers, blocks, queries, positions, order, due)
        ranks = kept if order is None else order.gather(3, kept)
        stays = torch.zeros(positions.shape, dtype=torch.bool, device=positions.device)
        stays.scatter_(3, ranks, True)
        # As many stay behind the new end as leave before it: they change places.
        from_ = stays[..., keep:].nonzero()
        to = stays[..., :keep].logical_not_().nonzero()[:, 3]
        layer, row, head, place = from_.unbind(1)
        place = place + keep
        positions[layer, row, head, to] = positions[layer, row, head, place]
        source = blocks[row, place // self.block_size], head, place % self.block_size
        target = blocks[row, to // self.block_size], head, to % self.block_size
        counts = torch.bincount(layer, minlength=positions.shape[0]).tolist()
        parts = [torch.split(index, counts) for index in (*source, *target)]
        for cache, *index in zip(self.caches[layers], *parts, strict=True):
            self.layout.move(cache, tuple(index[:3]), tuple(index[3:]))
        self._write_positions(layers, blocks, positions[..., :keep])

    def _write_positions(self, layers: slice, blocks: Tensor, positions: Tensor) -> None:
        """The inverse of reading the settled ones; the last block is filled up with zeros."""
        keep, size = positions.shape[3], self.block_size
        used = -(-keep // size)
        filled = torch.nn.functional.pad(positions, (0, used * size - keep))
        flat = filled.unflatten(3, (used, size)).permute(1, 3, 0, 2, 4).flatten(0, 1)
        self.positions[:, layers].index_copy_(0, blocks[:, :used].flatten(), flat)

    def _select(
        self,
        layers: slice,
        blocks: Tensor,
        queries: Tensor,
        positions: Tensor,
        order: Tensor | None,
        due: Due,
    ) -> Tensor:
        """[layers, rows, kv_heads, keep]: which entries stay, counted in the order of time."""
        lead = positions.shape[:2]
        caches = self.caches[layers]

        def ordered(read: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
            parts = [read(cache, blocks) for cache in caches]
            found = torch.cat(parts) if len(parts) > 1 else parts[0]
            if order is None:
                return found[:, :, : due.length]
            by_age: Tensor = rows_at(found.flatten(0, 1), order.flatten(0, 2))
            return by_age.view(*found.shape[:2], -1, self.head_dim)

        evictor = self.evictor
        if evictor.needs_keys:
            keys = ordered(self.layout.keys)
        else:
            shape = (lead.numel(), self.heads, due.length, self.head_dim)
            keys = caches[0].new_zeros(1).expand(shape)
        by_age = positions if order is None else positions.gather(3, order)
        kept: Tensor = evictor.select(
            KVSlice(
                keys=keys,
                queries=queries.flatten(0, 1),
                values=ordered(self.layout.values) if evictor.needs_values else None,
                positions=by_age.flatten(0, 1),
                prefix=torch.full((lead.numel(),), due.prefix) if due.prefix else None,
            )
        )
        return kept.view(*lead, self.heads, -1)


def _order(positions: Tensor, settled: int) -> Tensor | None:
    """[.., length]: places by age; None where that is the order in which they lie."""
    if not settled:
        return None
    places = torch.arange(positions.shape[3], device=positions.device)
    order = places.repeat(*positions.shape[:3], 1)
    order[..., :settled] = positions[..., :settled].argsort(dim=3)
    return order

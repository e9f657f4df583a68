"""Packs: forks of one parked row that decode side by side in one live row.

N forks of a full-context sequence differ in what they have written themselves only. So a live row
holds the prefix once, and behind it, in the order of decoding, the entries of all its forks:

    slots   0 .. p-1    p   p+1   p+2   p+3   p+4   p+5
    owner   everybody   a    b     c     a     c     a      (b has ended after its first token)

A decode step feeds one token per fork. The queries of a pack are stacked along the query axis, read
the row once, and a mask leaves to each the prefix and its own entries. What a fork pays for it are
its siblings' entries, so packs are small (`WIDTH`). A probe bundles whole continuations alike.

With an evictor forks lose different entries and have a row each (`kvrescue.engine.forks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kvrescue.engine.choices import no_shared_prefix
from kvrescue.engine.slots import SlotStore, width_bucket
from kvrescue.errors import ConfigError

__all__ = [
    "EVERYBODY",
    "NOBODY",
    "WIDTH",
    "PackedBatch",
    "grouped",
    "places",
    "shares_prefix",
    "ungrouped",
    "widths",
]

WIDTH: Final = 8
"""Most forks of a pack; measured by `python -m benchmarks.shared_prefix`."""
EVERYBODY: Final = -1
"""Owner of the prefix ..."""
NOBODY: Final = -2
"""... and of a slot that is not filled."""


class PackedBatch:
    """Decode steps of the same forks, one after the other; `slot_attention` takes it for a
    `ForwardBatch`.

    The model sees one row of tokens, [1, forks], so that packs of unequal size are padded in
    attention only. Made anew whenever forks come or go, the store moves, or a row grows beyond
    `reach`.

    Args:
        store: whose first rows are the packs.
        owner: [rows, capacity] int8: which fork of its pack a slot belongs to.
        row: [forks] the pack of each fork: ascending, without a gap.
        member: [forks] its number within the pack.
    """

    def __init__(
        self, store: SlotStore, owner: Tensor, row: np.ndarray, member: np.ndarray
    ) -> None:
        shape, device = store.shape, store.shape.device
        self.store = store
        self._row, self._counts = row, np.bincount(row)
        self._place = places(self._counts)
        self.rows, self.width = len(self._counts), int(self._counts.max())
        self._group = shape.q_heads // shape.kv_heads
        used = int(store.length[: self.rows].max()) + self.width
        self.reach = min(width_bucket(used), store.capacity)
        """Slots that the mask covers: a store keeps the capacity of the longest row it ever had."""
        line = row * self.width + self._place
        members = np.full(self.rows * self.width, EVERYBODY, dtype=np.int8)  # padding: the prefix
        members[line] = member
        self._lay = self._take = None
        """[rows * width] the fork at each place, [forks] the place of each; None: no padding."""
        if len(line) < len(members):
            lay = np.zeros(len(members), dtype=np.int64)
            lay[line] = np.arange(len(line))
            self._lay, self._take = (torch.from_numpy(x).to(device) for x in (lay, line))
        self.mask = self._mask(owner, torch.from_numpy(members).to(device))
        """[rows, 1, group * width, reach], added to the logits; None: all may be seen."""
        self._owner, self._member = owner.view(-1), torch.from_numpy(member).to(device, torch.int8)
        # Where a fork's token goes, in views with one axis of places, but for the slot.
        capacity, heads, groups = store.capacity, shape.kv_heads, np.arange(self._group)
        pairs = shape.layers * heads
        self._places = [
            torch.from_numpy(x).to(device)
            for x in (
                row * capacity,
                (row * pairs + np.arange(heads)[:, None]) * capacity,
                ((row * self._group + groups[:, None]) * self.width + self._place) * self.reach,
            )
        ]
        flat = [x.view(-1, shape.head_dim) for x in (store.keys, store.values)]
        self._ends = [
            tuple(x[layer * heads * capacity :] for x in flat) for layer in range(shape.layers)
        ]

    def _mask(self, owner: Tensor, members: Tensor) -> Tensor | None:
        shape, length = self.store.shape, self.store.length[: self.rows]
        filled = owner[: self.rows, None, : self.reach]
        seen = (filled == members.view(self.rows, self.width, 1)) | (filled == EVERYBODY)
        # A fork that is and was alone in its pack sees all of its row.
        if self.width == 1 and (length == length[0]).all() and seen[:, :, : length[0]].all():
            return None
        mask = torch.zeros(seen.shape, dtype=shape.dtype, device=shape.device)
        return mask.masked_fill_(~seen, -torch.inf).repeat(1, self._group, 1)[:, None]

    def begin(self, position: np.ndarray) -> None:
        """A step begins: each fork's token, of logical `position` [forks], has the next slot of its
        row. There must be room for it, below `reach`."""
        slot = self.store.length[self._row] + self._place
        self.stop = int(slot.max()) + 1
        device = self.store.shape.device
        self.positions = torch.from_numpy(position[None]).to(device)
        slots = torch.from_numpy(slot).to(device)
        owner, write, mask = (base + slots for base in self._places)
        self._owner.index_copy_(0, owner, self._member)
        if self.mask is not None:
            self.mask.view(-1).index_fill_(0, mask.view(-1), 0)
        self._write = write.view(-1)
        both = (self.store.keys, self.store.values)
        self._keys, self._values = (x[: self.rows, :, :, : self.stop].unbind(1) for x in both)

    def record(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write the new entries of a layer, [1, kv_heads, forks, head_dim]."""
        for target, new in zip(self._ends[layer], (key, value), strict=True):
            target.index_copy_(0, self._write, new.reshape(-1, new.shape[3]))

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """[1, forks, q_heads, head_dim]: attention of a layer; `query` [1, q_heads, forks,
        head_dim], `scale` of the logits."""
        q_heads, dim = query.shape[1], query.shape[3]
        laid = query[0] if self._lay is None else query[0].index_select(1, self._lay)
        laid = laid.reshape(q_heads, self.rows, self.width, dim).transpose(0, 1)
        out = F.scaled_dot_product_attention(
            grouped(laid, q_heads // self._group),
            self._keys[layer],
            self._values[layer],
            attn_mask=None if self.mask is None else self.mask[..., : self.stop],
            scale=scale,
        )
        out = ungrouped(out, q_heads).reshape(-1, q_heads, dim)
        return (out if self._take is None else out.index_select(0, self._take))[None]

    def advance(self) -> None:
        """The forward pass is complete: the fed tokens are part of the rows."""
        self.store.length[: self.rows] += self._counts


def grouped(query: Tensor, kv_heads: int) -> Tensor:
    """[rows, kv_heads, group * width, head_dim]: `query` [rows, q_heads, width, head_dim] with the
    heads of one KV head along the query axis, so that they share one read of its keys."""
    rows, q_heads, width, dim = query.shape
    return query.reshape(rows, kv_heads, q_heads // kv_heads * width, dim)


def ungrouped(out: Tensor, q_heads: int) -> Tensor:
    """[rows, width, q_heads, head_dim]: attention of `grouped` queries, as a model takes it."""
    rows, _, _, dim = out.shape
    return out.reshape(rows, q_heads, -1, dim).transpose(1, 2)


def places(counts: np.ndarray) -> np.ndarray:
    """0, 1, .. for each of `counts`: the place of every fork within its pack."""
    first: np.ndarray = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return first


def widths(count: int, width: int = WIDTH) -> Iterator[int]:
    """Sizes of as few packs as `count` forks need, alike within one: none is padded for another."""
    packs = -(-count // width)
    for i in range(packs):
        yield (count + i) // packs


def shares_prefix(
    asked: bool | None, name: str, device: torch.device, *, evicts: bool, graphs: bool
) -> bool:
    """Whether forks share their prefix; `asked` None: where that is known to be better.

    Raises:
        ConfigError: asked for where it cannot be.
    """
    why = no_shared_prefix(evicts=evicts, graphs=graphs)
    if asked and why:
        raise ConfigError(f"{name}: share_prefix = True does not go with {why}; leave one out")
    return (why is None and device.type == "cpu") if asked is None else asked

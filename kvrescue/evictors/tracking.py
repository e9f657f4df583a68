"""ScoreTracker: scores that cost what is new, for evictors that fire on nearly every token.

An evictor scores a cache from scratch. Between two firings almost nothing changes in it: a few
entries were appended, as many left. A tracker remembers, per entry and per head, what makes the
next scores cheap. Its memory lives in the cache's own rows, so it is forked, adopted and freed
with them; the tracker object itself holds no state.

A tracker is an optimisation and nothing else: its scores equal `Evictor.score` up to rounding.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["ScoreTracker", "StateField", "TrackedCache", "renamed"]


@dataclass(frozen=True, slots=True)
class StateField:
    """One remembered tensor: `shape` follows [rows, kv_heads] or [rows, kv_heads, length]."""

    shape: tuple[int, ...]
    """What follows the leading dimensions."""
    dtype: torch.dtype
    """Of its numbers."""


@dataclass(frozen=True, slots=True)
class TrackedCache:
    """Cached entries in *storage* order: entries that left were replaced by later ones.

    Every tensor but `queries` is a view: what a tracker writes into `state` is kept.
    """

    keys: Tensor
    """[rows, kv_heads, length, head_dim] float32; the `new` last ones are not tracked yet."""
    queries: Tensor
    """[rows, q_heads, observed, head_dim] float32, oldest first: the queries of the new entries,
    at most the evictor's `observation`; for `start` as many as there are."""
    order: Tensor
    """[rows, kv_heads, length] int64: where the i-th oldest entry lies."""
    logical: Tensor
    """[rows] tokens the sequence has seen."""
    state: dict[str, Tensor]
    """Per entry [rows, kv_heads, length, *shape], per head [rows, kv_heads, *shape]."""
    new: int = 0
    """Entries that the tracker has not seen yet, at the end."""

    def query_pairs(self) -> Tensor:
        """The queries as [rows * kv_heads, group, observed, head_dim]."""
        rows, q_heads, observed, dim = self.queries.shape
        heads = self.keys.shape[1]
        return self.queries.reshape(rows * heads, q_heads // heads, observed, dim)


class ScoreTracker(abc.ABC):
    """What `Evictor.tracker()` returns."""

    def compiled(self, device: torch.device) -> bool:
        """Whether its scores on `device` are compiled by numba, which the engine then uses, too."""
        return False

    @abc.abstractmethod
    def entry_state(self, head_dim: int) -> dict[str, StateField]:
        """What is remembered per entry; moves with it."""

    def head_state(self, head_dim: int) -> dict[str, StateField]:
        """What is remembered per KV head."""
        return {}

    @abc.abstractmethod
    def start(self, cache: TrackedCache) -> None:
        """Fill the state of all entries, which lie in temporal order."""

    @abc.abstractmethod
    def score(self, cache: TrackedCache) -> Tensor:
        """Take in the `new` entries; returns what `Evictor.score` would for the entries in
        *temporal* order: float32 [rows, kv_heads, length]."""

    @abc.abstractmethod
    def drop(self, cache: TrackedCache, slots: Tensor, sources: Tensor) -> None:
        """The entries at `slots` [rows, kv_heads, dropped] leave; they still lie where they lay.

        Then the entry at sources[..., j] moves to slots[..., j]; where both are the same, nothing
        takes the place of what left. State that refers to other entries by place is rewritten here
        (see `renamed`); moving is not done here.
        """


def renamed(length: int, slots: Tensor, sources: Tensor) -> Tensor:
    """[rows, kv_heads, length]: where each entry will lie, -1 for those that leave (see `drop`)."""
    import torch

    names = torch.arange(length, device=slots.device).repeat(*slots.shape[:2], 1)
    names.scatter_(2, sources, slots)
    return names.scatter_(2, slots, -1)

"""One configured instance of every built-in evictor, and slices to feed them.

Tests of laws that hold for all evictors run over `EVICTORS`; a new evictor joins by one line.
"""

from __future__ import annotations

import torch

from kvrescue.evictors import (
    H2O,
    RKV,
    Evictor,
    KVSlice,
    NoEviction,
    RandomEviction,
    SnapKV,
    StreamingLLM,
)

__all__ = ["EVICTORS", "SELECTING", "make_slice", "with_size"]

EVICTORS: list[Evictor] = [
    RKV(budget=6, window=3, observation=2),
    RKV(budget=6, window=3, observation=2, similarity_threshold=None, kernel_size=1, lam=0.5),
    SnapKV(budget=6, window=3, observation=2),
    SnapKV(budget=6, window=3, kernel_size=5, pooling="avg", reduce="mean", softmax_over="all"),
    H2O(budget=6, window=3),
    H2O(budget=6, window=3, per_query=False),
    StreamingLLM(budget=6, window=3, sinks=2),
    RandomEviction(budget=6, window=3, seed=7),
    NoEviction(),
]
SELECTING = [evictor for evictor in EVICTORS if evictor.bounded]


def with_size(evictor: Evictor, budget: int, window: int) -> Evictor:
    """The same method with another budget and window."""
    changes: dict[str, int] = {"window": window}
    if evictor.bounded:
        changes["budget"] = budget
    if isinstance(evictor, StreamingLLM):
        changes["sinks"] = min(evictor.sinks, budget)
    return type(evictor)(**(evictor.model_dump() | changes))


def make_slice(
    rows: int,
    length: int,
    *,
    kv_heads: int = 2,
    group: int = 2,
    dim: int = 8,
    observation: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    common: float = 1.0,
) -> KVSlice:
    """A dense random slice with every optional field that evictors read.

    `common` is the weight of a mean key: 1 gives the mix of matches and non-matches of real keys.
    """
    made = torch.Generator().manual_seed(seed)
    keys = torch.randn(rows, kv_heads, length, dim, generator=made)
    keys += common * torch.randn(rows, kv_heads, 1, dim, generator=made)
    queries = torch.randn(rows, kv_heads * group, observation, dim, generator=made)
    steps = torch.randint(1, 4, (rows, kv_heads, length), generator=made)
    return KVSlice(
        keys=keys.to(dtype),
        queries=queries.to(dtype),
        values=torch.randn(rows, kv_heads, length, dim, generator=made).to(dtype),
        positions=steps.cumsum(-1) - 1,
        attention=torch.rand(rows, kv_heads, length, generator=made),
    )

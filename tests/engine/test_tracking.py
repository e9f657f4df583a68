"""A tracker's scores equal the scores from scratch, whatever left the cache before."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvrescue import kernels
from kvrescue.engine.adapter import ForwardBatch
from kvrescue.engine.eviction import Eviction
from kvrescue.engine.slots import SlotStore
from kvrescue.errors import EvictorError
from kvrescue.evictors import RKV, Evictor, KVSlice, SnapKV
from kvrescue.evictors._rkv_tracker import RKVTracker
from kvrescue.evictors._snapkv_tracker import SnapKVTracker
from kvrescue.evictors.tracking import ScoreTracker, StateField, TrackedCache
from tests.engine.models import shape_for
from tests.evictors.matrix import SELECTING

LAYERS, HEADS, GROUP, DIM = 2, 2, 3, 6


class Audit(ScoreTracker):
    """Compares every score of a tracker with its evictor's, then lets arbitrary entries leave."""

    def __init__(
        self,
        evictor: Evictor,
        inner: ScoreTracker,
        from_scratch: Callable[[Any, KVSlice], Tensor],
    ) -> None:
        self.evictor, self.inner, self.from_scratch = evictor, inner, from_scratch
        self.store: SlotStore | None = None
        self.compared = 0

    def entry_state(self, head_dim: int) -> dict[str, StateField]:
        return self.inner.entry_state(head_dim)

    def head_state(self, head_dim: int) -> dict[str, StateField]:
        return self.inner.head_state(head_dim)

    def compiled(self, device: torch.device) -> bool:
        return self.inner.compiled(device)

    def start(self, cache: TrackedCache) -> None:
        self.inner.start(cache)

    def drop(self, cache: TrackedCache, slots: Tensor, sources: Tensor) -> None:
        self.inner.drop(cache, slots, sources)

    def score(self, cache: TrackedCache) -> Tensor:
        got = self.inner.score(cache)
        assert self.store is not None
        index = cache.order.unsqueeze(3).expand(-1, -1, -1, DIM)
        kv = KVSlice(
            keys=cache.keys.gather(2, index),
            queries=self.store.recent_queries(slice(0, 1), self.evictor.observation),
        )
        expected = self.from_scratch(self.evictor, kv)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        self.compared += 1
        return self.evictor.score(kv)


def by_chance(kv: KVSlice) -> Tensor:
    """Victims are drawn from the keys, so that any entry may leave at any time."""
    return (kv.keys.sum(-1) * 1e4).sin()


class ArbitraryRKV(RKV):
    def score(self, kv: KVSlice) -> Tensor:
        return by_chance(kv)

    def tracker(self) -> ScoreTracker:
        return Audit(self, RKVTracker(self), RKV.score)


class ArbitrarySnapKV(SnapKV):
    def score(self, kv: KVSlice) -> Tensor:
        return by_chance(kv)

    def tracker(self) -> ScoreTracker:
        return Audit(self, SnapKVTracker(self), SnapKV.score)


RKVS = st.builds(
    functools.partial,
    st.just(ArbitraryRKV),
    similarity_threshold=st.sampled_from([None, 0.0, 0.5, 0.9, 1.0]),
)
SNAPKVS = st.builds(
    functools.partial, st.just(ArbitrarySnapKV), pooling=st.sampled_from(["max", "avg"])
)
SCHEDULES: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**31),
    "counts": st.lists(st.integers(1, 5), min_size=3, max_size=25),
    "window": st.sampled_from([1, 4, 9]),
    "interval": st.integers(1, 5),
    "spread": st.sampled_from([0.02, 0.5, 3.0]),
    "protected": st.integers(0, 3),
    "shape": st.sampled_from([(2, 2, 3), (2, 1, 3), (1, 2, 1), (1, 1, 2)]),
}
"""Where "shape" is layers, KV heads and queries for each of them."""


@given(method=st.one_of(RKVS, SNAPKVS), **SCHEDULES)
@settings(max_examples=80)
def test_tracked_scores_equal_scores_from_scratch(**schedule: Any) -> None:
    tracked_equals_scratch(["off"], **schedule)


def tracked_equals_scratch(
    choices: Sequence[kernels.Choice],
    *,
    seed: int,
    counts: list[int],
    method: Callable[..., Evictor],
    window: int,
    interval: int,
    spread: float,
    protected: int,
    shape: tuple[int, int, int],
) -> None:
    """The law, with kernels chosen by `choices` in turn, firing by firing."""
    choice = itertools.cycle(choices)
    layers, heads, group = shape
    evictor = method(
        budget=11,
        window=window,
        observation=min(4, window),
        kernel_size=3,
        interval=min(interval, (11 + window) // 4),  # more at once are scored from scratch
    )
    eviction = Eviction(evictor)
    tracker = eviction.tracker
    assert isinstance(tracker, Audit)
    geometry = shape_for(evictor, tracker, layers, heads, group, DIM)
    # A row has room that it does not use: lines do not lie close to each other.
    tracker.store = store = SlotStore(geometry, 1, evictor.bound + evictor.interval + 2)
    store.prefix[0] = protected
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, DIM, generator=generator)
    few = 0
    for count in [22, *counts]:
        batch = ForwardBatch(store, np.array([count]), count)
        for layer in range(layers):
            which = torch.randint(0, 4, (1, heads, count), generator=generator)
            noise = torch.randn(1, heads, count, DIM, generator=generator)
            q = torch.randn(1, heads * group, count, DIM, generator=generator)
            batch.record(layer, q, centres[which] + spread * noise, noise)
        batch.advance()
        with kernels.using(next(choice)):
            dropped, kept = int(eviction.fire(store, 1)[0]), int(store.length[0])
        few += 0 < 4 * dropped <= kept
    assert tracker.compared == few


def overfull(evictor: Evictor) -> tuple[Eviction, SlotStore]:
    """A row with one entry more than its bound."""
    eviction, length = Eviction(evictor), evictor.bound + 1
    shape = shape_for(evictor, eviction.tracker, LAYERS, HEADS, GROUP, DIM)
    store = SlotStore(shape, 1, length)
    batch = ForwardBatch(store, np.array([length]), length)
    for layer in range(LAYERS):
        kv = torch.randn(2, 1, HEADS, length, DIM)
        batch.record(layer, torch.randn(1, HEADS * GROUP, length, DIM), kv[0], kv[1])
    batch.advance()
    return eviction, store


@pytest.mark.parametrize("evictor", SELECTING, ids=repr)
def test_numba_is_asked_for_by_those_it_compiles(
    monkeypatch: pytest.MonkeyPatch, evictor: Evictor
) -> None:
    """It takes seconds to load, which those without a tracker need not wait for."""
    asked: list[torch.device] = []
    monkeypatch.setattr(kernels, "compiled", lambda device: asked.append(device))
    eviction, store = overfull(evictor)
    assert eviction.fire(store, 1).tolist() == [1]
    assert bool(asked) == (eviction.tracker is not None)


@pytest.mark.parametrize("method", ["start", "score", "drop", "compiled"])
def test_a_tracker_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(RKVTracker, method, explode)
    eviction, store = overfull(RKV(budget=11, window=9, observation=4, kernel_size=3))
    assert eviction.tracker is not None
    with pytest.raises(EvictorError, match=r"^evictor 'rkv' failed: RuntimeError: boom$"):
        eviction.fire(store, 1)


def test_a_subclass_with_its_own_scores_does_not_inherit_the_tracker() -> None:
    class Other(RKV):
        def score(self, kv: KVSlice) -> Tensor:
            return kv.keys.sum(-1)

    class Same(RKV):
        pass

    assert Other(budget=64).tracker() is None
    assert Same(budget=64).tracker() is not None


@pytest.mark.parametrize(
    ("evictor", "tracked"),
    [
        (RKV(budget=64, window=128), True),
        (RKV(budget=64, window=128, interval=48), True),
        (RKV(budget=64, window=128, interval=49), False),  # so many at once: from scratch
        (RKV(budget=64, window=4, observation=8), False),  # a causal mask would apply
        (SnapKV(budget=64, window=128), True),
        (SnapKV(budget=64, window=4, observation=8), False),
        (SnapKV(budget=64, window=128, pooling="avg"), True),
        (SnapKV(budget=64, window=128, reduce="mean"), False),
        (SnapKV(budget=64, window=128, softmax_over="all"), False),
    ],
)
def test_when_a_tracker_is_used(evictor: Evictor, tracked: bool) -> None:
    assert (Eviction(evictor).tracker is not None) == tracked

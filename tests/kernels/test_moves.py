"""Entries that change their places by kernels lie where torch puts them, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue import kernels
from kvrescue.engine.eviction import Eviction
from kvrescue.engine.moves import compact, move, move_at
from kvrescue.engine.slots import KVShape, SlotStore
from kvrescue.evictors import RKV, RandomEviction
from kvrescue.evictors.base import Evictor
from kvrescue.kernels import compaction
from tests.kernels.both import both

EXAMPLES = settings(max_examples=15)
DTYPES = [torch.float32, torch.bfloat16, torch.int32, torch.int64]
seeds = st.integers(0, 2**31)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(int(np.prod(shape))).view(shape).to(dtype)


@given(
    seed=seeds,
    pairs=st.integers(1, 3),
    slots=st.integers(1, 80),
    share=st.floats(0, 1),
    width=st.sampled_from([(), (1,), (5,), (3, 50)]),
    dtype=st.sampled_from(DTYPES),
    ascending=st.booleans(),
)
@EXAMPLES
def test_compact(
    seed: int,
    pairs: int,
    slots: int,
    share: float,
    width: tuple[int, ...],
    dtype: torch.dtype,
    ascending: bool,
) -> None:
    """Also in an order that kernels do not know, which torch takes then."""
    made = torch.Generator().manual_seed(seed)
    kept = torch.stack([torch.randperm(slots, generator=made) for _ in range(pairs)])
    kept = kept[:, : int(share * slots)]
    kept = kept.sort(1).values if ascending else kept

    def run() -> torch.Tensor:
        values = numbers((pairs + 1, slots + 3, *width), dtype)
        compact(values[:pairs, :slots], kept)
        return values

    expected, found = both(run)
    assert torch.equal(expected, found)
    before = numbers((pairs + 1, slots + 3, *width), dtype)
    for pair, places in enumerate(kept):
        assert torch.equal(found[pair, : len(places)], before[pair, places])
        assert torch.equal(found[pair, len(places) :], before[pair, len(places) :])


def test_no_scratch_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is given the cache itself, and the torch path is not taken."""
    given_: list[int] = []
    kernel = compaction.compact

    def seen(values: torch.Tensor, kept: torch.Tensor) -> None:
        given_.append(values.data_ptr())
        kernel(values, kept)

    monkeypatch.setattr(compaction, "compact", seen)
    values = numbers((2, 9, 4), torch.float32)
    with kernels.using("on"):
        compact(values, torch.tensor([[0, 2, 8]] * 2))
        compact(values, torch.tensor([[2, 0, 8]] * 2))
    assert given_ == [values.data_ptr()]


@given(
    seed=seeds,
    entries=st.integers(2, 90),
    width=st.sampled_from([(), (5,), (130,)]),
    dtype=st.sampled_from(DTYPES),
)
@EXAMPLES
def test_move(seed: int, entries: int, width: tuple[int, ...], dtype: torch.dtype) -> None:
    places = torch.randperm(entries, generator=torch.Generator().manual_seed(seed))
    source, target = places[: entries // 2], places[entries // 2 : entries // 2 * 2]

    def run() -> torch.Tensor:
        values = numbers((entries, *width), dtype)
        move(values, source, target)
        return values

    expected, found = both(run)
    assert torch.equal(expected, found)
    assert torch.equal(found[target], numbers((entries, *width), dtype)[source])


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_move_at(axes: tuple[int, ...]) -> None:
    """Coordinates in a cache that is a strided view, as vLLM's are."""
    source = torch.tensor([[0, 4], [2, 0], [3, 1]])
    target = torch.tensor([[1, 2], [2, 2], [0, 6]])

    def run() -> torch.Tensor:
        cache = numbers((6, 7, 7, 12), torch.float32).permute(axes)
        move_at(cache[1:, :, :, 2:10], tuple(source), tuple(target))
        return cache

    expected, found = both(run)
    assert torch.equal(expected, found)
    inner = numbers((6, 7, 7, 12), torch.float32).permute(axes)[1:, :, :, 2:10]
    assert torch.equal(found[1:, :, :, 2:10][tuple(target)], inner[tuple(source)])


SHAPE = KVShape(
    layers=2,
    q_heads=2,
    kv_heads=1,
    head_dim=8,
    dtype=torch.float32,
    device=torch.device("cpu"),
    observation=4,
)


@pytest.mark.parametrize(
    "evictor",
    [
        RKV(budget=8, window=4, observation=4, interval=6),
        RandomEviction(budget=8, window=4, observation=4, interval=2, seed=3),
    ],
    ids=["many leave", "few leave"],
)
def test_a_store_is_evicted_from_alike(evictor: Evictor) -> None:
    """Twice, so that entries have been replaced in place before."""

    def run() -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(7)
        store = SlotStore(SHAPE, 2, evictor.bound + evictor.interval)
        store.entries["order"][:] = torch.arange(store.capacity)
        eviction = Eviction(evictor)
        fed = 0
        for _ in range(2):
            count = evictor.bound + evictor.interval - int(store.length[0])
            for name in ("keys", "values"):
                part = store.entries[name][:, :, :, -count:]
                part.copy_(torch.randn(part.shape, generator=made))
            positions = torch.arange(fed, fed + count, dtype=torch.int32)
            store.entries["positions"][:, :, :, -count:] = positions
            store.entries["order"][:, :, :, -count:] = torch.arange(store.capacity)[-count:]
            store.heads["queries"].copy_(torch.randn(store.heads["queries"].shape, generator=made))
            fed += count
            store.length[:] += count
            store.logical[:] = fed
            assert (eviction.fire(store, 2) == evictor.interval).all()
        return {name: value[:, :, :, : evictor.bound] for name, value in store.entries.items()}

    expected, found = both(run)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name

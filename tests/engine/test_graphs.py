"""Captured decode steps, with a recorder in place of CUDA graphs.

It records the tensor operations of a step with every number that the host contributes frozen, as a
CUDA graph does; replaying runs no Python of the engine. Reading a tensor on the host is refused, as
it is while a graph is captured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from kvrescue.engine.engine import Engine
from kvrescue.engine.graphs import MOST, GraphedDecoder, StaticBatch, rows_bucket
from kvrescue.engine.slots import width_bucket
from kvrescue.errors import ConfigError, PolicyError
from kvrescue.evictors import RKV, Evictor, SnapKV
from kvrescue.policies.base import Sampling
from kvrescue.types import StopReason
from tests.engine.models import FAMILIES, engine_for, random_model, shared_model


class Recorder(TorchDispatchMode):
    """Runs operations and notes them: (operation, arguments, options, result)."""

    READS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if self.READS & set(func.tags):
            raise RuntimeError(f"{func} reads a tensor on the host")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Traced:
    """Replays recorded operations; tensors that none of them made stay those of the recording."""

    def __init__(self) -> None:
        self.replayed = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        with Recorder() as recorder:
            work()
        assert len(recorder.calls) > 50, "the operations of the model are not recorded"

        def replay() -> None:
            self.replayed += 1
            made: dict[int, Tensor] = {}

            def now(tensor: Tensor) -> Tensor:
                return made.get(id(tensor), tensor)

            for func, args, kwargs, result in recorder.calls:
                again = func(
                    *tree_map_only(Tensor, now, args), **tree_map_only(Tensor, now, kwargs)
                )
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor):
                        made[id(old)] = new

        return replay


def graphed(evictor: Evictor | None = None, family: str = "qwen2") -> tuple[Engine, Traced]:
    engine, api = engine_for(shared_model(family), evictor, share_prefix=False), Traced()
    engine.runner.graphs = GraphedDecoder(engine.adapter, api)
    return engine, api


def candidates(engine: Engine, lengths: list[int], n: int, tokens: int) -> list[list[list[int]]]:
    """Token ids of `n` sampled candidates for each of some prompts, twice over."""
    sampling = Sampling(temperature=0.7, separator="\x00", max_step_tokens=tokens)

    async def one(length: int) -> list[list[int]]:
        sequence = await engine.open([3 + (7 * i + length) % 50 for i in range(length)])
        found = []
        for turn in range(2):
            drafts = await engine.propose(
                sequence, sampling, (), range(turn, turn + n), tokens, StopReason.LENGTH
            )
            found += [d.token_ids for d in drafts]
            engine.adopt(sequence, 0)
            await engine.extend(sequence, drafts[0].token_ids[-1:])
        engine.close(sequence, audit=False)
        return found

    async def everybody() -> list[list[list[int]]]:
        return list(await asyncio.gather(*(one(length) for length in lengths)))

    return asyncio.run(everybody())


EVICTORS: list[Evictor | None] = [
    None,
    RKV(budget=9, window=4, observation=3, kernel_size=3),
    SnapKV(budget=16, window=8, observation=4, interval=3, kernel_size=3, protect_prompt=True),
]


@pytest.mark.parametrize("evictor", EVICTORS, ids=lambda e: e.kind if e else "full")
def test_replayed_steps_give_the_same_tokens(evictor: Evictor | None) -> None:
    plain = candidates(engine_for(shared_model(), evictor), [5, 22, 31], 3, 14)
    engine, api = graphed(evictor)
    assert candidates(engine, [5, 22, 31], 3, 14) == plain
    assert api.replayed > engine.runner.graphs.captured > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_captured_whole(family: str) -> None:
    plain = candidates(engine_for(shared_model(family)), [9], 2, 6)
    assert candidates(graphed(family=family)[0], [9], 2, 6) == plain


def test_a_step_that_reads_a_tensor_on_the_host_is_not_recorded() -> None:
    with pytest.raises(RuntimeError, match="reads a tensor on the host"):
        Traced().capture(lambda: print(torch.ones(3).sum().item()))


def test_numbers_keep_their_place_from_step_to_step() -> None:
    engine, _ = graphed(EVICTORS[1])
    store = engine.runner.store(4)
    batch = StaticBatch(store, 4, store.capacity)
    tensors = (batch.numbers, batch.tokens, batch.positions, batch.slots, store.keys, store.values)
    before = [(t.data_ptr(), t.shape, t.stride()) for t in tensors]
    for step in range(3):
        batch.fill(np.array([5, 6 + step]))
        store.length[:2] += 1
        store.logical[:2] += 1
    assert [(t.data_ptr(), t.shape, t.stride()) for t in tensors] == before
    assert batch.tokens[:, 0].tolist() == [5, 8, 0, 0]
    assert batch.slots[:, 0].tolist() == [2, 2, 0, 0]


def test_buckets_are_few_and_wide_enough() -> None:
    rows = {rows_bucket(n) for n in range(1, 1025)}
    assert all(n <= rows_bucket(n) < 2 * n for n in range(1, 1025))
    assert len(rows) == 6 + 31
    widths = {width_bucket(n) for n in range(1, 4097)}
    assert all(n <= width_bucket(n) <= max(64, 1.5 * n) for n in range(1, 4097))
    assert len(widths) == 13
    assert all(width_bucket(w) == w for w in widths)


def test_an_evicted_engine_needs_one_graph_per_number_of_rows() -> None:
    engine, _ = graphed(EVICTORS[1])
    decoder = engine.runner.graphs
    candidates(engine, [20, 30], 4, 20)
    assert 0 < decoder.captured <= 4 + 1  # 8 rows, and fewer as they end; the store grew once
    seen = decoder.captured
    candidates(engine, [20, 30], 4, 20)
    assert decoder.captured == seen


def test_graphs_of_a_store_that_moved_are_not_replayed() -> None:
    engine, api = graphed()
    decoder, store = engine.runner.graphs, engine.runner.store(2, 64)
    decoder.step(store, np.array([3, 4]))
    decoder.step(store, np.array([3, 4]))
    assert decoder.captured == 1
    store.reserve(5, 64)
    decoder.step(store, np.array([3, 4]))
    assert (decoder.captured, api.replayed) == (2, 3)


def test_no_more_graphs_than_the_limit_are_kept() -> None:
    engine, _ = graphed()
    decoder = engine.runner.graphs
    decoder.api = Reran()
    store = engine.runner.store(2048, 64)
    for live in (*range(1, 33), *range(64, 2048, 32)):
        decoder.step(store, np.full(live, 3))
        store.length[:] = 0
        store.logical[:] = 0
    assert decoder.captured > MOST
    assert len(decoder._steps) == MOST


class Reran:
    """Runs the work again."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


class Refuses:
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_device_that_cannot_capture_is_told() -> None:
    engine = engine_for(shared_model(), EVICTORS[1])
    engine.runner.graphs = GraphedDecoder(engine.adapter, Refuses())
    with pytest.raises(PolicyError, match=r"cannot be captured: .*not permitted.*leave it out"):
        candidates(engine, [22], 2, 8)


def test_graphs_are_off_on_a_cpu_and_cannot_be_asked_for() -> None:
    assert engine_for(random_model()).runner.graphs is None
    assert engine_for(random_model(), graphs=False).runner.graphs is None
    with pytest.raises(ConfigError, match=r"graphs = True: the model is on cpu.*leave it out"):
        engine_for(random_model(), graphs=True)

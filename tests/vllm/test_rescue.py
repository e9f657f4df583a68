"""Both roles on vLLM in one process: whole runs, replayed on the torch engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import Tensor

from kvrescue import Rescue
from kvrescue.evaluation.bill import bills
from kvrescue.evictors import RKV
from kvrescue.evictors.base import Evictor
from kvrescue.policies.vllm.messages import Due
from kvrescue.policies.vllm.policy import VLLMPolicy
from kvrescue.types import Candidate, StopReason
from tests.policies.parts import BASE, DRAWN, foreign, idle, questions
from tests.vllm.parts import leaving_the_process_alone, torch_policy, vllm_policy

ON_VLLM = [
    "proposers.base.policy.kind=vllm",
    "proposers.base.policy.kv_cache_bytes=33554432",
    "proposers.helper.policy.kind=vllm",
    "proposers.helper.policy.kv_cache_bytes=33554432",
    "limits.max_steps=6",
]


@pytest.fixture(scope="module")
def rescue() -> Any:
    with Rescue.from_config("tiny", ON_VLLM) as built:
        yield built


def policies(rescue: Rescue) -> list[VLLMPolicy]:
    found = [p.policy for p in rescue.selector.proposers]
    assert all(isinstance(p, VLLMPolicy) for p in found)
    return found  # type: ignore[return-value]


def test_it_solves(rescue: Rescue) -> None:
    """Base and helper engines alternate in one process; the audit sees evictions."""
    for question in questions(3):
        solution = rescue.solve(question, seed=1)
        assert solution.steps
        assert not solution.degradations
        base, helper = solution.caches["base"], solution.caches["helper"]
        assert base.logical_length == helper.logical_length
        assert base.evictions > 0
        assert base.peak_physical <= 28
        assert helper.physical_length == helper.logical_length
    assert all(idle(policy) for policy in policies(rescue))


def test_a_hundred_problems_at_once_are_a_hundred_alone() -> None:
    """Greedy, whole trajectories: company in the batch changes nothing of what is committed."""
    greedy = ["sampling.temperature=0", "limits.max_output_tokens=32", "concurrency=100"]
    greedy += ["proposers.base.policy.evictor.interval=4"]
    asked = [bill.question for bill in bills("test", 3, 100)]
    with Rescue.from_config("tiny", [*ON_VLLM, *greedy]) as rescue:
        together = {s.question.text: s for s in rescue.solve_many(asked)}
        alone = {question: rescue.solve(question) for question in asked}
        assert all(idle(policy) for policy in policies(rescue))
    assert len(together) == 100
    for question, lonely in alone.items():
        solution = together[question]
        assert [s.text for s in solution.steps] == [s.text for s in lonely.steps]
        assert (solution.caches, solution.stop) == (lonely.caches, lonely.stop)
    assert len({s.text for s in alone.values()}) > 90


def test_one_engine_may_end_before_the_other() -> None:
    first, second = (
        VLLMPolicy(BASE, evictor=RKV(budget=16, window=12, interval=1), kv_cache_bytes=8 << 20)
        for _ in range(2)
    )

    async def use(policy: VLLMPolicy) -> tuple[int, ...]:
        view = await policy.open(questions(1)[0], "base")
        found = await view.propose(1, DRAWN, (), [1], 20)
        await view.close()
        return found[0].token_ids

    before = asyncio.run(use(second))
    asyncio.run(first.aclose())
    assert asyncio.run(use(second)) == before
    asyncio.run(second.aclose())


def test_starting_an_engine_leaves_the_process_as_it_was() -> None:
    policy = leaving_the_process_alone(lambda: VLLMPolicy(BASE, kv_cache_bytes=8 << 20))
    asyncio.run(policy.aclose())


EVICTORS = [
    RKV(budget=32, window=16, observation=8, interval=1),
    RKV(budget=64, window=32, observation=8, interval=16),
]


@pytest.mark.parametrize("evictor", EVICTORS, ids=lambda e: str(e.budget))
async def test_a_run_replays_to_the_same_cache_in_the_torch_engine(evictor: Evictor) -> None:
    """Sampled steps of four problems with foreign ones among them: final keys and values of every
    layer, head and entry within 1e-3, and the same positions."""
    ours, theirs = vllm_policy(BASE, evictor), torch_policy(BASE, evictor)

    async def run(number: int) -> None:
        question = questions()[number]
        view = await ours.open(question, "base")
        engine: Any = theirs.engine
        twin = await engine.open(theirs.prompt_ids(question))
        for turn in range(4):
            seeds = [100 * number + 10 * turn + i for i in range(3)]
            sampling = DRAWN.model_copy(update={"max_step_tokens": 24})
            found = await view.propose(3, sampling, (), seeds, 512)
            good = [c for c in found if c.stop is not StopReason.EOS]
            if turn % 2 == 0 and good:
                await view.commit(good[-1])
                for token in good[-1].token_ids:  # decoded one by one
                    await engine.extend(twin, [token])
            else:
                step: Candidate = foreign(ours, "So 3 + 4 = 7. Then 7 + 5 = 12.\n\n")
                await view.commit(step)
                await engine.extend(twin, step.token_ids)
        await view.commit(foreign(ours, "12 - 4 = 8.\n\n"))
        await engine.extend(twin, foreign(ours, "12 - 4 = 8.\n\n").token_ids)
        assert view.stats == theirs.engine.stats(twin)
        sequence: Any = view.sequence
        keys, values, positions = cache_of(ours, sequence.state)
        store = engine.parked.store
        assert torch.equal(positions, store.in_order("positions", twin.row))
        torch.testing.assert_close(keys, store.in_order("keys", twin.row), atol=1e-3, rtol=0)
        torch.testing.assert_close(values, store.in_order("values", twin.row), atol=1e-3, rtol=0)
        await view.close()
        engine.close(twin)

    await asyncio.gather(*(run(i) for i in range(4)))


def cache_of(policy: VLLMPolicy, state: str) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values [layers, heads, length, dim] and positions [layers, heads, length], by age."""
    driver = policy.engine.driver
    paged = driver.llm.model_executor.driver_worker.worker.model_runner.paged
    held = driver.scheduler.held[state]
    blocks = torch.tensor([[b.block_id for b in held.blocks]])
    account = held.account
    keep = account.prefix + policy.engine.evictor.bound if account.evicted else 0
    due = Due(held.length, 0, account.prefix, held.logical, settled=keep)
    layers, shift = slice(0, len(paged.caches)), torch.tensor([account.evicted], dtype=torch.int32)
    positions, order = paged.positions_of(layers, blocks, shift, due)[:, 0].sort()
    wide = order[..., None].expand(-1, -1, -1, paged.head_dim)
    keys, values = (
        torch.cat([read(cache, blocks) for cache in paged.caches]).gather(2, wide)
        for read in (paged.layout.keys, paged.layout.values)
    )
    return keys, values, positions

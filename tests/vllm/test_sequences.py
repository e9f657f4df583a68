"""Forks, commits, aborts and blocks on vLLM: isolation, exact verdicts, nothing leaks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kvrescue.engine.checkpoint import resolve
from kvrescue.errors import AuditError, CapacityError, NonFiniteLogitsError, PolicyError
from kvrescue.evictors import RKV
from kvrescue.policies.vllm.policy import VLLMPolicy
from kvrescue.types import StopReason
from tests.engine.firing import FiresAt
from tests.policies.parts import BASE, HELPER, decode, foreign, idle, questions, step
from tests.vllm.parts import blocks_of, vllm_policy

EVICTOR = RKV(budget=32, window=16, observation=8, interval=4)
ROOMY = RKV(budget=900, window=16, observation=8, interval=4)


@pytest.fixture(params=["evicted", "full"])
def policy(request: Any) -> VLLMPolicy:
    if request.param == "evicted":
        return vllm_policy(BASE, EVICTOR)
    return vllm_policy(HELPER, None)


@pytest.fixture
def evicted() -> VLLMPolicy:
    return vllm_policy(BASE, EVICTOR)


# -- forks ----------------------------------------------------------------------------------------


async def test_a_foreign_step_is_one_forward_pass(evicted: VLLMPolicy) -> None:
    """Law 6, seen from the scheduler: all its tokens in one step, then the eviction."""
    engine = evicted.engine
    view = await evicted.open(questions(1)[0], "base")
    before, dropped = engine.driver.steps, view.stats.dropped
    text = foreign(evicted, "First 3 + 4 = 7. Then 7 + 5 = 12.\n\n")
    await view.commit(text)
    assert engine.driver.steps == before + 1
    stats = view.stats
    assert stats.logical_length - stats.dropped == stats.physical_length == EVICTOR.bound
    assert stats.dropped - dropped == len(text.token_ids)
    await view.close()
    assert idle(evicted)


# -- ends ------------------------------------------------------------------------------------------


async def test_an_aborted_candidate_is_never_held(evicted: VLLMPolicy) -> None:
    view = await evicted.open(questions(1)[0], "base")
    held = evicted.engine.in_use["held"]
    found = await view.propose(4, step(20), (FiresAt(position=3),), [1, 2, 3, 4], 512)
    assert {c.stop for c in found} == {StopReason.ABORTED}
    assert [c.n_tokens for c in found] == [3] * 4
    assert evicted.engine.in_use["held"] == held == 1
    assert evicted.engine.in_use["requests"] == 0
    await view.close()
    assert idle(evicted)


async def test_nan_logits_are_an_error(evicted: VLLMPolicy) -> None:
    view = await evicted.open(questions(1)[0], "base")
    scheduler = evicted.engine.driver.scheduler
    inner = scheduler.update_from_output

    def broken(scheduler_output: Any, output: Any) -> Any:
        output.kvrescue.entropies = dict.fromkeys(output.kvrescue.entropies, float("nan"))
        return inner(scheduler_output, output)

    scheduler.update_from_output = broken
    try:
        with pytest.raises(NonFiniteLogitsError):
            await view.propose(2, step(20), (), [1, 2], 512)
    finally:
        del scheduler.update_from_output
    await view.close()
    assert idle(evicted)


# -- blocks ---------------------------------------------------------------------------------------


LONG = RKV(budget=128, window=32, observation=8, interval=16)


def long_base(folder: Path) -> str:
    """The tiny base with more positions than it was trained for; what it says does not matter."""
    source = Path(resolve(BASE).path)
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    config["max_position_embeddings"] = 2048
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


async def test_a_long_sequence_owns_few_blocks(tmp_path: Path) -> None:
    """Report 14: 1,500 tokens at B' = 160; what the pool says, not what the lengths say."""
    policy = VLLMPolicy(long_base(tmp_path), evictor=LONG, kv_cache_bytes=8 << 20)
    engine = policy.engine
    sequence = await engine.open(policy.prompt_ids(questions(3)[2]))
    most = -(-(LONG.bound + LONG.interval) // engine.block_size) + 1
    turn = 0
    while len(sequence.tokens) < 1500:
        turn += 1
        drafts = await engine.propose(sequence, step(80), (), [turn], 80, StopReason.LENGTH)
        if 0 not in sequence.forks or drafts[0].token_ids[-1] in engine.eos:
            await engine.extend(sequence, policy.tokenizer.encode("3 + 4 = 7.\n\n"))
        else:
            engine.adopt(sequence, 0)
            await engine.extend(sequence, drafts[0].token_ids[-1:])
        assert blocks_of(policy, sequence) <= most
        assert engine.in_use["blocks"] <= most
        assert engine.stats(sequence).physical_length < LONG.bound + LONG.interval
    assert engine.stats(sequence).logical_length >= 1500
    engine.close(sequence)
    assert idle(policy)
    await policy.aclose()


async def test_many_problems_with_aborts_leave_the_pool_as_it_was(policy: VLLMPolicy) -> None:
    async def problem(number: int) -> int:
        view = await policy.open(questions()[number % 8], "base")
        detector = FiresAt(position=2 + number % 5)
        for turn in range(3):
            seeds = [100 * number + 10 * turn + i for i in range(3)]
            screened = (detector,) if (number + turn) % 2 else ()
            found = await view.propose(3, step(12), screened, seeds, 512)
            alive = [c for c in found if c.verdict is None and c.stop is not StopReason.EOS]
            await view.commit(alive[0] if alive else foreign(policy, "3 + 4 = 7.\n\n"))
        length = view.stats.logical_length
        await view.close()
        return length

    scheduler = policy.engine.driver.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    before = pool.get_num_free_blocks()
    lengths = await asyncio.gather(*(problem(i) for i in range(50)))
    assert min(lengths) > 40
    assert idle(policy)
    assert pool.get_num_free_blocks() == before
    assert all(block.ref_cnt == 0 for block in pool.blocks if not block.is_null)
    if policy.engine.evictor is not None:
        assert scheduler.preemptions == 0


async def test_a_preempted_fork_forks_again() -> None:
    """Reports 13 and 35: it starts from its state again, with what it has decoded, and nothing is
    lost. Admission keeps this from happening; here it is forced."""
    policy = vllm_policy(BASE, ROOMY)
    prompt = policy.prompt_ids(questions(1)[0])
    expected = await decode(policy, prompt, 40, (1, 2))
    scheduler = policy.engine.driver.scheduler
    inner, calls = scheduler.schedule, 0

    def schedule(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (5, 9):
            scheduler._preempt_request(scheduler.running.pop(), 0.0)
        return inner(*args)

    scheduler.schedule = schedule
    try:
        found = await decode(policy, prompt, 40, (1, 2))
    finally:
        del scheduler.schedule
    assert scheduler.preemptions == 2
    assert found == expected
    assert idle(policy)


# -- admission and audit --------------------------------------------------------------------------


async def test_a_small_pool_serves_many_problems_in_turn() -> None:
    """Held states can never starve the pool: sequences wait before they open."""
    policy = vllm_policy(BASE, EVICTOR, kv_cache_bytes=1 << 20, candidates=3, max_context=256)
    assert policy.engine.admission is not None
    unit = 2  # blocks of 32 for 32 + 16 + 4 entries
    room = policy.engine.admission.total // (4 * unit)
    assert 0 < room < 12

    async def problem(number: int) -> None:
        view = await policy.open(questions()[number % 8], "base")
        for turn in range(2):
            found = await view.propose(3, step(12), (), [number, turn, 7], 512)
            await asyncio.sleep(0)
            await view.commit(found[turn])
        await view.close()

    await asyncio.wait_for(asyncio.gather(*(problem(i) for i in range(12))), 120)
    assert policy.engine.driver.scheduler.preemptions == 0
    assert idle(policy)


async def test_what_can_never_fit_is_an_error() -> None:
    policy = vllm_policy(BASE, EVICTOR, kv_cache_bytes=1 << 20, candidates=3, max_context=256)
    view = await policy.open(questions(1)[0], "base")
    with pytest.raises(CapacityError, match="candidates=200"):
        await view.propose(200, step(4), (), list(range(200)), 512)
    assert await view.propose(4, step(4), (), [1, 2, 3, 4], 512)
    await view.close()
    assert idle(policy)


async def test_an_eviction_that_was_not_made_is_an_audit_error() -> None:
    """Report 15: silently full KV. The engine is not used afterwards."""
    policy = VLLMPolicy(BASE, evictor=EVICTOR, kv_cache_bytes=8 << 20)
    runner = policy.engine.driver.llm.model_executor.driver_worker.worker.model_runner
    runner._evict = lambda message: {}
    with pytest.raises(AuditError, match="hook"):
        await policy.open(questions(1)[0], "base")
    await policy.aclose()


async def test_attention_without_the_hook_is_an_audit_error() -> None:
    policy = VLLMPolicy(BASE, evictor=EVICTOR, kv_cache_bytes=8 << 20)
    runner = policy.engine.driver.llm.model_executor.driver_worker.worker.model_runner
    runner.ring.record = lambda layer, query: None
    with pytest.raises(AuditError, match="0 of 3 layers"):
        await policy.open(questions(1)[0], "base")
    await policy.aclose()
    with pytest.raises(PolicyError, match="closed"):
        await policy.open(questions(1)[0], "base")

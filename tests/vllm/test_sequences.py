"""Forks, commits, aborts and blocks on vLLM: isolation, exact verdicts, nothing leaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvrescue.detectors import EntropyDetector, GzipDetector, NgramDetector
from kvrescue.detectors.bank import DetectorBank
from kvrescue.detectors.base import Detector, TokenEvent
from kvrescue.errors import AuditError, CapacityError, NonFiniteLogitsError, PolicyError
from kvrescue.evictors import RKV
from kvrescue.policies.vllm.policy import VLLMPolicy
from kvrescue.types import Candidate, StopReason
from tests.engine.firing import Exits, FiresAt
from tests.vllm.parts import (
    BASE,
    DRAWN,
    GREEDY,
    HELPER,
    blocks_of,
    decode,
    foreign,
    questions,
    vllm_policy,
)

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


def step(count: int, **update: Any) -> Any:
    return DRAWN.model_copy(update={"max_step_tokens": count, **update})


def greedy(count: int) -> Any:
    return GREEDY.model_copy(update={"max_step_tokens": count})


def idle(policy: VLLMPolicy) -> bool:
    return not any(policy.engine.in_use.values())


# -- forks ----------------------------------------------------------------------------------------


async def test_a_candidate_depends_on_its_seed_alone(policy: VLLMPolicy) -> None:
    """Laws 5 and 9: siblings, order and repetition change nothing."""
    view = await policy.open(questions(1)[0], "base")
    together = await view.propose(4, step(24), (), [11, 12, 13, 14], 512)
    alone = [(await view.propose(1, step(24), (), [s], 512))[0] for s in (14, 13, 12, 11)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone[::-1]]
    assert len({c.token_ids for c in together}) > 1
    assert [c.seed for c in together] == [11, 12, 13, 14]
    await view.close()
    assert idle(policy)


async def test_adopting_a_fork_equals_having_decoded_it_alone(policy: VLLMPolicy) -> None:
    """Law 5: four commits of 16 tokens are one decoding of 64."""
    prompt = policy.prompt_ids(questions(1)[0])
    (whole,) = await decode(policy, prompt, 64)
    view = await policy.open(questions(1)[0], "base")
    pieces: list[int] = []
    while len(pieces) < len(whole):
        found = await view.propose(3, greedy(16), (), [1, 2, 3], 512)
        pieces += found[1].token_ids
        await view.commit(found[1])
        assert view.stats.logical_length == len(prompt) + len(pieces)
    assert pieces == whole
    await view.close()
    assert idle(policy)


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


async def test_a_step_of_another_tokenizer_travels_as_text(policy: VLLMPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    length, text = view.stats.logical_length, "3 + 4 = 7.\n\n"
    await view.commit(Candidate("x", 0, text, (1, 2), StopReason.SEPARATOR, tokenizer="other"))
    ids = policy.tokenizer.encode(text, add_special_tokens=False)
    assert view.stats.logical_length == length + len(ids)
    await view.close()


async def test_a_step_ends_at_the_separator(policy: VLLMPolicy) -> None:
    views = await asyncio.gather(*(policy.open(q, "base") for q in questions(4)))
    sampling = step(60, separator="\n\n")
    rounds = await asyncio.gather(*(v.propose(3, sampling, (), [1, 2, 3], 512) for v in views))
    found = [c for round_ in rounds for c in round_]
    ended = [c for c in found if c.stop is StopReason.SEPARATOR]
    assert ended
    assert all(c.text.endswith("\n\n") and "\n\n" not in c.text[:-2] for c in ended)
    assert all(c.stop in (StopReason.EOS, StopReason.LENGTH) or c in ended for c in found)
    for view in views:
        await view.close()


async def test_limits_name_their_reason(policy: VLLMPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    (short,) = await view.propose(1, step(5), (), [3], 512)
    (cut,) = await view.propose(1, step(5), (), [3], 4)
    assert (short.stop, short.n_tokens) == (StopReason.LENGTH, 5)
    assert (cut.stop, cut.n_tokens) == (StopReason.CONTEXT, 4)
    assert cut.token_ids == short.token_ids[:4]
    await view.close()


async def test_a_context_can_be_filled_to_the_last_token() -> None:
    policy = vllm_policy(BASE, EVICTOR, max_context=128)
    view = await policy.open(questions(1)[0], "base")
    while view.room:
        found = await view.propose(1, step(16), (), [view.room], 512)
        if found[0].stop is StopReason.EOS:
            found = [foreign(policy, "3 + 4 = 7.\n\n")]
            found = [
                Candidate(
                    "x",
                    0,
                    "",
                    found[0].token_ids[: view.room],
                    StopReason.LENGTH,
                    tokenizer=policy.pieces.fingerprint,
                )
            ]
        await view.commit(found[0])
    assert view.stats.logical_length == 128
    assert view.stats.physical_length < EVICTOR.bound + EVICTOR.interval
    with pytest.raises(PolicyError, match="no room"):
        await view.propose(1, step(16), (), [1], 512)
    await view.close()
    assert idle(policy)


# -- detectors ------------------------------------------------------------------------------------

DETECTORS = [
    EntropyDetector(threshold=1.5, guard=4, window=3),
    GzipDetector(window_chars=40, stride_chars=1, threshold=0.8),
    NgramDetector(max_period=4, min_count=2, min_span=2),
]


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: d.kind)
async def test_verdicts_are_those_of_the_whole_candidate(
    policy: VLLMPolicy, detector: Detector
) -> None:
    """The candidate without a detector, read by the detector afterwards, says where to stop."""
    seeds, sampling = list(range(12)), step(60)
    view = await policy.open(questions(1)[0], "base")
    free = await view.propose(12, sampling, (), seeds, 512)
    screened = await view.propose(12, sampling, (detector,), seeds, 512)
    fired = 0
    for whole, seen in zip(free, screened, strict=True):
        bank, position = DetectorBank([detector]), 0
        texts = policy.pieces
        for token, entropy in zip(whole.token_ids, whole.entropies, strict=True):
            if token in policy.engine.eos:
                break
            position += 1
            if bank.update(TokenEvent(token, texts.decode([token]), entropy)):
                break
        expected = bank.verdict
        if expected is None:
            assert seen.verdict is None
            assert seen.token_ids == whole.token_ids
            continue
        fired += 1
        assert seen.verdict is not None
        assert (seen.verdict.position, seen.verdict.char_position) == (
            expected.position,
            expected.char_position,
        )
        assert seen.verdict.value == pytest.approx(expected.value, abs=1e-3)
        assert seen.stop is StopReason.ABORTED
        assert seen.token_ids == whole.token_ids[:position]
    assert fired
    await view.close()
    assert idle(policy)


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


async def test_a_broken_detector_fails_its_proposal_alone(policy: VLLMPolicy) -> None:
    first, second = [await policy.open(q, "base") for q in questions(2)]
    bad, good = await asyncio.gather(
        first.propose(2, step(20), (FiresAt(position=3, fail=True),), [1, 2], 512),
        second.propose(2, step(20), (), [1, 2], 512),
        return_exceptions=True,
    )
    assert isinstance(bad, ZeroDivisionError)
    assert isinstance(good, list)
    await first.close()
    await second.close()
    assert idle(policy)


def test_a_detector_that_exits_fails_its_proposal_alone() -> None:
    policy = vllm_policy(BASE, EVICTOR)

    async def run() -> None:
        first, second = [await policy.open(q, "base") for q in questions(2)]
        good = asyncio.ensure_future(second.propose(2, step(20), (), [1, 2], 512))
        with pytest.raises(SystemExit):
            await first.propose(2, step(20), (Exits(),), [1, 2], 512)
        assert len(await good) == 2
        await first.close()
        await second.close()

    asyncio.run(run())
    assert idle(policy)


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


async def test_a_long_sequence_owns_few_blocks(evicted: VLLMPolicy) -> None:
    """Report 14: what the pool says, not what the lengths say."""
    engine = evicted.engine
    sequence = await engine.open(evicted.prompt_ids(questions(3)[2]))
    most = -(-(EVICTOR.bound + EVICTOR.interval) // engine.block_size) + 1
    for turn in range(12):
        drafts = await engine.propose(sequence, step(60), (), [turn], 60, StopReason.LENGTH)
        if 0 not in sequence.forks or drafts[0].token_ids[-1] in engine.eos:
            await engine.extend(sequence, evicted.tokenizer.encode("3 + 4 = 7.\n\n"))
        else:
            engine.adopt(sequence, 0)
            await engine.extend(sequence, drafts[0].token_ids[-1:])
        assert blocks_of(evicted, sequence) <= most
        assert engine.in_use["blocks"] <= most
        assert engine.stats(sequence).physical_length < EVICTOR.bound + EVICTOR.interval
    assert len(sequence.tokens) > 2 * EVICTOR.bound
    engine.close(sequence)
    assert idle(evicted)


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

    lengths = await asyncio.gather(*(problem(i) for i in range(24)))
    assert min(lengths) > 40
    assert idle(policy)
    if policy.engine.evictor is not None:
        assert policy.engine.driver.scheduler.preemptions == 0


async def test_together_or_one_by_one(evicted: VLLMPolicy) -> None:
    prompts = [evicted.prompt_ids(q) for q in questions(8)]
    together = await asyncio.gather(*(decode(evicted, p, 48) for p in prompts))
    alone = [await decode(evicted, p, 48) for p in prompts]
    assert together == alone


async def test_closing_and_cancelling_free_at_once(policy: VLLMPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    task = asyncio.create_task(view.propose(3, step(400), (), [1, 2, 3], 512))
    for _ in range(6):
        await asyncio.sleep(0)
    assert policy.engine.in_use["requests"] > 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert policy.engine.in_use["requests"] == 0
    task = asyncio.create_task(view.propose(3, step(400), (), [1, 2, 3], 512))
    for _ in range(6):
        await asyncio.sleep(0)
    await view.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert idle(policy)
    with pytest.raises(PolicyError, match="closed"):
        await view.propose(1, step(4), (), [1], 512)


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

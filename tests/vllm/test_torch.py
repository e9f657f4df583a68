"""The same evictor gives the same output on both engines (float32)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvrescue.evictors import RKV, RandomEviction, SnapKV, StreamingLLM
from kvrescue.evictors.base import Evictor
from kvrescue.policies.base import Policy
from kvrescue.policies.vllm.policy import VLLMPolicy
from kvrescue.types import CacheStats, Question
from tests.policies.parts import BASE, GREEDY, SMOLLM, foreign, questions
from tests.vllm.parts import torch_policy, vllm_policy

NARROW: dict[str, Any] = {"budget": 32, "window": 16, "observation": 8, "interval": 1}
LOOSE: dict[str, Any] = {"budget": 64, "window": 32, "observation": 8, "interval": 16}
EVICTORS = [RKV(**NARROW), RKV(**LOOSE), SnapKV(**NARROW), SnapKV(**LOOSE)]
HELP = "So far 3 + 4 = 7 and 7 + 5 = 12. Then 12 - 4 = 8.\n\n"

Trace = tuple[list[tuple[int, ...]], list[tuple[float, ...]], list[CacheStats]]


async def trajectory(policy: Any, question: Question, length: int) -> Trace:
    """Propose, commit an own step, propose, commit a foreign step (twice), propose."""
    view = await policy.open(question, "base")
    tokens, entropies, stats = [], [], [view.stats]
    step = GREEDY.model_copy(update={"max_step_tokens": length})
    for turn in range(4):
        found = await view.propose(2, step, (), [1, 2], 512)
        assert found[0].token_ids == found[1].token_ids
        tokens.append(found[0].token_ids)
        entropies.append(found[0].entropies)
        await view.commit(foreign(policy, HELP) if turn in (1, 2) else found[0])
        stats.append(view.stats)
    await view.close()
    return tokens, entropies, stats


async def compare(
    ours: Policy, theirs: Policy, asked: list[Question], length: int, tolerance: float = 1e-3
) -> None:
    found = await asyncio.gather(*(trajectory(ours, q, length) for q in asked))
    expected = await asyncio.gather(*(trajectory(theirs, q, length) for q in asked))
    for (tokens, entropies, stats), (tokens_, entropies_, stats_) in zip(
        found, expected, strict=True
    ):
        assert tokens == tokens_
        assert stats == stats_
        for mine, other in zip(entropies, entropies_, strict=True):
            assert mine == pytest.approx(other, abs=tolerance)
    assert all(stats[-1].evictions > 0 for *_, stats in found)


@pytest.mark.parametrize("evictor", EVICTORS, ids=lambda e: f"{e.kind}-{e.budget}")
async def test_the_tiny_base(evictor: Evictor) -> None:
    ours, theirs = vllm_policy(BASE, evictor), torch_policy(BASE, evictor)
    await compare(ours, theirs, questions(6), 60)


@pytest.mark.parametrize("evictor", EVICTORS, ids=lambda e: f"{e.kind}-{e.budget}")
async def test_smollm2(evictor: Evictor) -> None:
    """A real model: 30 layers of 3 KV heads. Tokens and lengths are equal. Entropies may differ
    where two scores are equal up to rounding and the engines keep one entry or the other: of the
    first question, entries 17 and 22 of layer 8, head 2 differ by 4e-9 (2.5e-3 nats later)."""
    ours = VLLMPolicy(SMOLLM, evictor=evictor, max_context=512, kv_cache_bytes=256 << 20)
    await compare(ours, torch_policy(SMOLLM, evictor), questions(2), 32, 0.02)
    await ours.aclose()


OTHERS = [
    StreamingLLM(sinks=4, **NARROW),
    RandomEviction(seed=3, **NARROW),
    RKV(protect_prompt=True, **NARROW),
    SnapKV(budget=24, window=4, observation=16, interval=5),
    RKV(budget=8, window=0, observation=1, interval=3),
]


@pytest.mark.parametrize("evictor", OTHERS, ids=lambda e: e.kind)
async def test_positions_prefix_and_causal_masks(evictor: Evictor) -> None:
    """What depends on logical positions, on the protected prompt and on a short window."""
    ours, theirs = vllm_policy(BASE, evictor), torch_policy(BASE, evictor)
    await compare(ours, theirs, questions(3), 40)


async def test_a_prompt_in_chunks_is_evicted_as_a_whole() -> None:
    """Law 6: nothing is evicted between the chunks that a scheduler cuts a prompt into."""
    evictor = RKV(**NARROW)
    ours = vllm_policy(
        BASE, evictor, {"max_num_batched_tokens": 32}, max_context=1024, max_live_rows=8
    )
    asked = [Question(q.text * 3) for q in questions(3)]
    await compare(ours, torch_policy(BASE, evictor), asked, 30)

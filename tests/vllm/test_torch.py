"""The same evictor gives the same output on both engines (float32)."""

from __future__ import annotations

import pytest

from kvrescue.evictors import RKV, RandomEviction, SnapKV, StreamingLLM
from kvrescue.evictors.base import Evictor
from kvrescue.types import Question
from tests.policies.parts import BASE, questions
from tests.vllm.parity import EVICTORS, NARROW, compare
from tests.vllm.parts import torch_policy, vllm_policy


@pytest.mark.parametrize("evictor", EVICTORS, ids=lambda e: f"{e.kind}-{e.budget}")
async def test_the_tiny_base(evictor: Evictor) -> None:
    ours, theirs = vllm_policy(BASE, evictor), torch_policy(BASE, evictor)
    await compare(ours, theirs, questions(6), 60)


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

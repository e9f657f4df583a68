"""The same evictor gives the same output on both engines: a real model (float32)."""

from __future__ import annotations

import pytest

from kvrescue.evictors.base import Evictor
from kvrescue.policies.vllm.policy import VLLMPolicy
from tests.policies.parts import SMOLLM, questions
from tests.vllm.parity import EVICTORS, compare
from tests.vllm.parts import torch_policy


# Each method and each interval once; test_torch.py has all pairs, on a model that is quicker.
@pytest.mark.parametrize("evictor", EVICTORS[::3], ids=lambda e: f"{e.kind}-{e.budget}")
async def test_smollm2(evictor: Evictor) -> None:
    """A real model: 30 layers of 3 KV heads. Tokens and lengths are equal. Entropies may differ
    where two scores are equal up to rounding and the engines keep one entry or the other: of the
    first question, entries 17 and 22 of layer 8, head 2 differ by 4e-9 (2.5e-3 nats later)."""
    ours = VLLMPolicy(SMOLLM, evictor=evictor, max_context=512, kv_cache_bytes=256 << 20)
    await compare(ours, torch_policy(SMOLLM, evictor), questions(2), 16, 0.02)
    await ours.aclose()

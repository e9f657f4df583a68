"""Law 7: with budget >= length the engine's output is token-identical to transformers' own
greedy `generate`, for every supported family, in a batch of unequal lengths."""

from __future__ import annotations

import asyncio

import pytest
import torch

from kvrescue.evictors import RKV
from kvrescue.evictors.base import Evictor
from kvrescue.policies.base import Sampling
from kvrescue.types import StopReason
from tests.engine.models import EOS, FAMILIES, VOCAB, engine_for, random_model

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_step_tokens=40, separator="\x00")


def prompts() -> list[list[int]]:
    g = torch.Generator().manual_seed(3)
    return [torch.randint(3, EOS, (n,), generator=g).tolist() for n in (1, 5, 17, 40)]


async def decode(engine, prompt: list[int], count: int = 1) -> list[list[int]]:
    sequence = await engine.open(prompt)
    drafts = await engine.propose(sequence, GREEDY, (), [0] * count, 40, StopReason.LENGTH)
    engine.close(sequence)
    return [d.token_ids for d in drafts]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("evictor", [None, RKV(budget=256, window=8)], ids=["full", "rkv"])
async def test_greedy_equals_generate(family: str, evictor: Evictor | None) -> None:
    model = random_model(family)
    expected = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=40,
            use_cache=True,
        )
        expected.append(out[0, len(prompt) :].tolist())
    engine = engine_for(model, evictor)
    got = await asyncio.gather(*(decode(engine, p, 2) for p in prompts()))
    for want, twins in zip(expected, got, strict=True):
        assert twins == [want, want]
    assert sum(engine.in_use.values()) == 0
    assert all(0 <= t < VOCAB for twins in got for t in twins[0])

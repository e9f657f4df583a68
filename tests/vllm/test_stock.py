"""Law 7 on vLLM: with budget >= length, and without an evictor, the output is stock vLLM's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kvrescue.engine.checkpoint import resolve
from kvrescue.evictors import RKV
from kvrescue.policies.vllm.export import model_folder
from tests.policies.parts import BASE, HELPER, SMOLLM, decode, questions
from tests.vllm.parts import vllm_policy

WIDE = RKV(budget=1000, window=24, observation=8, interval=1)


def stock(model: str, prompts: Sequence[list[int]], count: int, **kwargs: Any) -> list[list[int]]:
    """What unmodified vLLM generates, in one batch."""
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        model_folder(resolve(model)),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=32,
        block_size=32,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=512 << 20 if model == SMOLLM else 32 << 20,
        disable_log_stats=True,
        **kwargs,
    )
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
    outputs = llm.generate(
        [TokensPrompt(prompt_token_ids=p) for p in prompts], params, use_tqdm=False
    )
    llm.llm_engine.engine_core._finalizer.detach()  # it would end all engines of the process
    return [list(o.outputs[0].token_ids) for o in outputs]


def cut(tokens: list[int], eos: frozenset[int]) -> list[int]:
    """Up to and with the end-of-sequence token."""
    ends = [i for i, t in enumerate(tokens) if t in eos]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.mark.parametrize(("model", "length", "asked"), [(BASE, 200, 8), (SMOLLM, 32, 4)])
async def test_a_wide_budget_changes_nothing(model: str, length: int, asked: int) -> None:
    policy = vllm_policy(model, WIDE, max_context=1024, candidates=1)
    prompts = [policy.prompt_ids(q) for q in questions(asked)]
    expected = stock(model, prompts, length)
    found = await asyncio.gather(*(decode(policy, p, length) for p in prompts))
    assert [f[0] for f in found] == [cut(e, policy.engine.eos) for e in expected]
    assert sum(len(f[0]) for f in found) > length


async def test_the_helper_is_stock_vllm_with_prefix_caching() -> None:
    """Also: head_dim 32 with width 64 and 4 heads is honoured."""
    policy = vllm_policy(HELPER, None)
    prompts = [policy.prompt_ids(q) for q in questions()]
    found = await asyncio.gather(*(decode(policy, p, 60, (1, 2)) for p in prompts))
    overrides = {"architectures": ["LlamaForCausalLM"], "qkv_bias": True}
    expected = stock(HELPER, prompts, 60, hf_overrides=overrides)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == [cut(theirs, policy.engine.eos)] * 2

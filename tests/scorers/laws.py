"""What every scorer keeps to, whatever it runs on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvrescue.scorers.base import Scorer
from tests.scorers.helpers import QUESTION, Trajectory, candidate, pool

TEXTS = ("First, 12 apples.\n\n", "é 文字 😀\n\n", "leaving 7;\n\n", "Let x = 3.\n\n")


async def check_laws(scorer: Scorer, near: float = 1e-5) -> None:
    """Order, duplicates, range, companions, cancellation, release; the scorer can be used on."""
    t = Trajectory(steps=[candidate("Let x = 3.\n\n")])
    assert await scorer.score(t.context, []) == []
    one_by_one = [(await scorer.score(t.context, pool(text)))[0] for text in TEXTS]
    assert all(0.0 <= score <= 1.0 for score in one_by_one)
    expected = dict(zip(TEXTS, one_by_one, strict=True))
    for order in (TEXTS, TEXTS[::-1], (*TEXTS, *TEXTS)):
        scores = await scorer.score(t.context, pool(*order))
        assert scores == pytest.approx([expected[text] for text in order], abs=near)
    doubled = await scorer.score(t.context, pool(TEXTS[0], TEXTS[1], TEXTS[0]))
    assert doubled[0] == doubled[2]

    async def play(number: int, scorer: Scorer = scorer) -> list[float]:
        t = Trajectory(f"{QUESTION} No. {number}")
        scores: list[float] = []
        for step in TEXTS[: 1 + number % 3]:
            scores += await scorer.score(t.context, pool(*TEXTS[: 1 + number % 2], step))
            t.commit(candidate(step))
        await scorer.release(t.context)
        return scores

    alone = [await play(i) for i in range(4)]
    together = await asyncio.gather(*(play(i) for i in range(4)))
    for a, b in zip(alone, together, strict=True):
        assert a == pytest.approx(b, abs=near)

    running: asyncio.Task[Any] = asyncio.create_task(scorer.score(t.context, pool(*TEXTS)))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    again = await scorer.score(t.context, pool(*TEXTS))
    assert again == pytest.approx(one_by_one, abs=near)

    for _ in range(2):
        await scorer.release(t.context)
    await scorer.release(Trajectory().context)  # one that never was
    again = await scorer.score(t.context, pool(*TEXTS))
    assert again == pytest.approx(one_by_one, abs=near)
    await scorer.release(t.context)

"""What must hold where a scorer is asked; the laws stand in `scorer_laws`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvrescue.errors import KVRescueError
from kvrescue.scorers.base import Scorer
from kvrescue.scoring import fault_of_score
from kvrescue.testing.holding import held
from kvrescue.testing.laws import Law, LawBroken, broken
from kvrescue.testing.loops import ENDS, awaited
from kvrescue.testing.pools import QUESTIONS, STEPS, Pool, drawn, grown
from kvrescue.testing.scorer_laws import (
    AWKWARD,
    CANCELLED,
    COMPANIONS,
    CONCURRENT,
    COUNT,
    DETERMINISTIC,
    FINITE,
    MEMORY,
    ORDER,
    RELEASED,
    RUNS,
    UNIT,
)
from kvrescue.types import Candidate, Context, Question

__all__ = ["Asking"]

ROUND: Final = 6
"""Trajectories after which growth is looked for."""
BOUND: Final = 1_200
"""Trajectories after which a bounded cache is full."""
PATIENCE: Final = 20.0
"""Seconds to follow one that grows."""

AWKWARD_TEXTS: Final = (
    "",
    " \n\n",
    "\n\n",
    "😀" * 5,
    "e\u0301\u200d\ufeff",
    "\x00\x07",
    "<extra_0>",
)
LONG_TEXT: Final = "so it goes, " * 20_000


class Asking:
    """The laws on one scorer."""

    def __init__(
        self, scorer: Scorer, who: str, *, tolerance: float, seconds: float, relative: bool
    ) -> None:
        self.scorer, self.who, self.tolerance = scorer, who, tolerance
        self.seconds, self.relative = seconds, relative
        self.firsts: dict[Pool, list[float]] = {}
        """What the first reading of each pool gave."""

    async def call(self, call: Any, what: str, then: str = "") -> Any:
        """What a method of the scorer returns, in time."""
        __tracebackhide__ = True
        return await awaited(
            call, what, self.who, runs=RUNS, ends=ENDS, seconds=self.seconds, then=then
        )

    async def release(self, context: Context) -> None:
        __tracebackhide__ = True
        await self.call(self.scorer.release(context), "release")

    async def ask(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """Scores that are known to be scores."""
        __tracebackhide__ = True
        asked = list(candidates)
        then = f", asked for {len(candidates)} candidates"
        given: Any = await self.call(self.scorer.score(context, asked), "score", then)
        if asked != list(candidates):
            broken(COUNT, self.who, "it changed the list of candidates", "the list as it was")
        wanted = f"a list of {len(candidates)} numbers"
        if isinstance(given, Mapping | set | str | bytes) or not hasattr(given, "__len__"):
            broken(COUNT, self.who, f"a {type(given).__name__}", wanted)
        if len(given) != len(candidates):
            seen = f"{len(given)} scores for {len(candidates)} candidates"
            broken(COUNT, self.who, seen, wanted)
        scores = []
        for candidate, score in zip(candidates, given, strict=True):
            fault = fault_of_score(score)
            if fault is not None:
                law = UNIT if "outside" in fault else FINITE if "finite" in fault else COUNT
                wanted = "a number in [0, 1], as a float"
                broken(law, self.who, f"score of {candidate.text!r}: {fault}", wanted)
            scores.append(float(score))
        return scores

    async def read(self, case: Pool, context: Context, pool: Sequence[Candidate]) -> list[float]:
        """Scores that are those of the first reading."""
        __tracebackhide__ = True
        scores = await self.ask(context, pool)
        first = self.firsts.setdefault(case, scores)
        how = "after others were scored"
        self.compare(MEMORY, pool, first, scores, how)
        return scores

    async def first(self, case: Pool) -> None:
        """A first reading, and no more."""
        __tracebackhide__ = True
        context = case.context()
        await self.read(case, context, case.pool())
        await self.release(context)

    async def again(self, case: Pool, scorer: Scorer | None = None) -> None:
        """A pool as it was read first, here or by another scorer."""
        __tracebackhide__ = True
        mine, context, pool = self.scorer, case.context(), case.pool()
        how = "after all others were scored"
        if scorer is not None:
            self.scorer, how = scorer, "from a new scorer, asked in another order"
        try:
            scores = await self.ask(context, pool)
            self.compare(MEMORY, pool, self.firsts[case], scores, how)
            await self.release(context)
        finally:
            self.scorer = mine

    async def pool(self, case: Pool) -> None:
        __tracebackhide__ = True
        context, pool = case.context(), case.pool()
        scores = await self.read(case, context, pool)
        await self.steady(context, pool, scores, 1)
        try:
            await self.variants(case, context, pool, scores)
        except LawBroken:
            await self.steady(context, pool, scores, 5)  # or is it chance?
            raise

    async def steady(
        self, context: Context, pool: Sequence[Candidate], scores: Sequence[float], times: int
    ) -> None:
        __tracebackhide__ = True
        for _ in range(times):
            again = await self.ask(context, pool)
            self.compare(DETERMINISTIC, pool, scores, again, "asked again")

    async def variants(
        self, case: Pool, context: Context, pool: list[Candidate], scores: Sequence[float]
    ) -> None:
        __tracebackhide__ = True
        turned = await self.ask(context, pool[::-1])
        self.compare(ORDER, pool, scores, turned[::-1], "in reverse order")
        if not self.relative:
            alone = [(await self.ask(context, [candidate]))[0] for candidate in pool]
            self.compare(COMPANIONS, pool, alone, scores, f"among {len(pool)}", "alone")
        growing = case.context(steps=0)
        for place, text in enumerate(case.steps):
            await self.ask(growing, [drawn(text), *pool])
            growing = grown(growing, text, place)
        late = await self.ask(growing, pool)
        self.compare(MEMORY, pool, scores, late, "after growing step by step", "anew")
        if await self.ask(context, []):
            broken(COUNT, self.who, "scores for no candidates", "[]")
        for known in (context, growing):
            await self.release(known)

    def compare(
        self,
        law: Law,
        pool: Sequence[Candidate],
        first: Sequence[float],
        then: Sequence[float],
        how: str,
        before: str = "at first",
    ) -> None:
        __tracebackhide__ = True
        for candidate, one, two in zip(pool, first, then, strict=True):
            if not math.isclose(one, two, rel_tol=0.0, abs_tol=self.tolerance):
                seen = f"{candidate.text!r} has {one:.6g} {before} and {two:.6g} {how}"
                broken(law, self.who, seen, f"the same within {self.tolerance:g}")

    async def awkward(self, case: Pool) -> None:
        __tracebackhide__ = True
        context, pool = case.context(), case.pool()
        before = await self.ask(context, pool)
        for text in (*AWKWARD_TEXTS, LONG_TEXT):
            long = text is LONG_TEXT
            shown = f"{text[:20]!r}..., {len(text):,} characters" if long else repr(text)
            odd = drawn(text, len(pool))
            try:
                scores = await self.ask(context, [odd] if long else [*pool, odd])
            except KVRescueError as error:
                if not long:
                    broken(AWKWARD, self.who, f"{shown}: {error}", "a score")
            except AssertionError:
                raise
            except Exception as error:
                seen = f"{shown}: {type(error).__name__}: {error}"
                broken(AWKWARD, self.who, seen, "a score, or a KVRescueError if too long")
            else:
                if not long and not self.relative:
                    self.compare(AWKWARD, pool, before, scores[:-1], f"beside {shown}", "without")
        after = await self.ask(context, pool)
        self.compare(AWKWARD, pool, before, after, "after awkward texts")
        await self.release(context)

    async def concurrent(self, case: Pool) -> None:
        __tracebackhide__ = True

        async def play(number: int) -> list[float]:
            context = Context(Question(QUESTIONS[number % len(QUESTIONS)], f"q{number}"))
            scores: list[float] = []
            for text in STEPS[: 1 + number % 3]:
                texts = (*STEPS[: 1 + number % 2], text)
                scores += await self.ask(context, [drawn(t, i) for i, t in enumerate(texts)])
                context = grown(context, text)
            await self.release(context)
            return scores

        alone = [await play(number) for number in range(4)]
        together = await asyncio.gather(*(play(number) for number in range(4)))
        for number, (one, two) in enumerate(zip(alone, together, strict=True)):
            for a, b in zip(one, two, strict=True):
                if abs(a - b) > self.tolerance:
                    seen = f"trajectory {number} of 4: {a:.6g} alone and {b:.6g} beside the others"
                    broken(CONCURRENT, self.who, seen, f"the same within {self.tolerance:g}")

    async def cancelled(self, case: Pool) -> None:
        __tracebackhide__ = True
        context, pool = case.context(), case.pool()
        before = await self.ask(context, pool)
        for turns in (1, 2, 3, 1, 2, 3):
            running = asyncio.ensure_future(self.scorer.score(context, list(pool)))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            after = await self.ask(context, pool)
            self.compare(CANCELLED, pool, before, after, "after a call was cancelled")
        await self.release(context)

    async def released(self, case: Pool) -> None:
        __tracebackhide__ = True
        context, pool = case.context(), case.pool()
        before = await self.ask(context, pool)
        for known in (context, context, case.context()):
            await self.release(known)
        after = await self.ask(context, pool)
        self.compare(RELEASED, pool, before, after, "after `release`")
        await self.release(context)

    async def forgets(self, case: Pool) -> None:
        """Trajectories of the same texts, one after another, leave nothing behind.

        What is kept up to a bound grows until the bound: so growth is followed for as many
        trajectories as a reasonable bound has entries, or until patience ends.
        """
        __tracebackhide__ = True

        async def play(count: int) -> int:
            """By how much the scorer grew over `count` trajectories."""
            __tracebackhide__ = True
            before = held(self.scorer)
            for _ in range(count):
                context = case.context()
                await self.ask(context, case.pool()[:1])
                await self.release(context)
            after = held(self.scorer)
            return 0 if before is None or after is None else after - before

        await play(ROUND)
        if await play(ROUND) < ROUND or await play(ROUND) < ROUND:
            return
        end = time.monotonic() + PATIENCE
        for _ in range(BOUND // 50):
            if await play(50) < 50 or time.monotonic() > end:
                return
        more = await play(50)
        if more >= 50:
            seen = f"{BOUND + 3 * ROUND} trajectories were released; each leaves "
            seen += f"{more / 50:.0f} object(s) more in the scorer"
            broken(RELEASED, self.who, seen, "as much after `release` as before the trajectory")

    async def close(self, case: Pool) -> None:
        for _ in range(2):
            await self.call(self.scorer.aclose(), "aclose")

"""What must hold of a policy's views; the laws stand in `policies`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from kvrescue.detectors.base import Detector, DetectorState, TokenEvent
from kvrescue.policies.base import View
from kvrescue.testing import policies as laws
from kvrescue.testing.drawing import Drawing, drawn, shown
from kvrescue.testing.laws import Law, broken
from kvrescue.testing.policies import QUESTIONS, Scene
from kvrescue.types import Candidate, StopReason, Verdict

__all__ = ["AbortAt", "Checks"]

ROUNDS = 12
"""Views that are opened and closed one after the other, to find what is not freed."""
FOREIGN = "Then 3 + 4 = 7.\n\n"


class AbortAt(Detector):
    """Ends every candidate at its token `position`."""

    kind: ClassVar[str] = "abort_at"

    position: int

    def start(self) -> DetectorState:
        return _Counting(self.position)


class _Counting(DetectorState):
    def __init__(self, position: int) -> None:
        self.position, self.read = position, 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self.read += 1
        if self.read < self.position:
            return None
        return Verdict("abort_at", "as asked", self.read, float(self.read), float(self.position))


class Checks(Drawing):
    """The laws on one policy."""

    # -- one scene -----------------------------------------------------------------------------

    async def steps(self, scene: Scene) -> None:
        """Only the steps of a scene."""
        __tracebackhide__ = True
        await self.scene(scene, draws=False)

    async def scene(self, scene: Scene, *, draws: bool = True) -> None:
        __tracebackhide__ = True
        view, twin = await self.open(scene.question), await self.open(scene.question)
        try:
            self.alike(view, twin, laws.REOPEN, "opened again")
            for turn, what in enumerate(scene.turns):
                if not await self.turn(view, twin, scene, what, turn):
                    return
            if draws:
                await self.draws(view, twin, scene)
        finally:
            await self.close(view)
            await self.close(twin)

    def alike(self, view: View, twin: View, law: Law, how: str) -> None:
        __tracebackhide__ = True
        one, two = view.stats.logical_length, twin.stats.logical_length
        if (one, view.room) != (two, twin.room):
            seen = f"length {one} and room {view.room}; {how}: {two} and {twin.room}"
            broken(law, self.who, seen, "the same")

    async def turn(self, view: View, twin: View, scene: Scene, what: str, number: int) -> bool:
        """Commit one step in both views; False when the trajectory ends there.

        The view draws the scene's candidates and commits the last one; the twin draws only that
        one, or is given it as a foreign step.
        """
        __tracebackhide__ = True
        if what == "foreign":
            step = Candidate("x", 0, FOREIGN, (1, 2), StopReason.SEPARATOR, "another vocabulary")
            for each in (view, twin):
                grown = await self.commit(each, step)
                if each.stats.logical_length and not grown:
                    seen = f"the length stays, although {FOREIGN!r} was committed"
                    broken(laws.COMMIT, self.who, seen, "more tokens")
            return True
        seeds = [seed + 1000 * (number + 1) for seed in scene.seeds]
        found = await self.propose(view, scene.n, scene.tokens, seeds)
        if what == "twice":
            found = await self.propose(view, scene.n, scene.tokens, seeds)
        last = found[-1]
        if last.stop is StopReason.EOS or not last.text.strip():
            # The trajectory would end here; a foreign step may still follow in its place.
            return "foreign" in scene.turns[number:]
        grown = await self.commit(view, last)
        if view.stats.logical_length and grown != last.n_tokens:
            seen = f"an own step of {last.n_tokens} tokens advances by {grown}"
            broken(laws.COMMIT, self.who, seen, f"{last.n_tokens}")
        await self.commit(twin, replace(last, policy="other"))
        self.alike(view, twin, laws.COMMIT, "with an equal foreign step")
        return True

    async def draws(self, view: View, twin: View, scene: Scene) -> None:
        """Seeds, forks, limits and verdicts from the state that the scene has reached."""
        __tracebackhide__ = True
        n, tokens, seeds = scene.n, scene.tokens, scene.seeds
        drawn = await self.propose(view, n, tokens, seeds)
        if self.seeded:
            everyone = range(n)
            await self.again(view, scene, drawn, everyone[::-1], "drawn again")
            for index in everyone if n > 1 else ():
                await self.again(view, scene, drawn, (index,), "alone")
            short = max(1, tokens // 2)
            cut = await self.propose(view, n, tokens, seeds, max_tokens=short)
            for whole, part in zip(drawn, cut, strict=True):
                if whole.token_ids[: part.n_tokens] != part.token_ids:
                    await self.settled(view, scene, drawn)
                    seen = f"candidate {part.index} is {shown(whole)}; cut: {shown(part)}"
                    broken(laws.LIMITS, self.who, seen, "its beginning")
            if not scene.turns:
                other = await self.propose(twin, n, tokens, seeds)
                if [c.text for c in other] != [c.text for c in drawn]:
                    await self.settled(view, scene, drawn)
                self.same(laws.REOPEN, drawn, other, "from a view opened again")
        position = max(1, tokens // 2)
        await self.aborts(view, scene, drawn, position)
        await self.adopts(view, scene)

    async def again(
        self, view: View, scene: Scene, found: Sequence[Candidate], places: Sequence[int], how: str
    ) -> None:
        """Some candidates, drawn once more: the same, or has the view moved, or was it chance?"""
        __tracebackhide__ = True
        seeds, wanted = [scene.seeds[i] for i in places], [found[i] for i in places]
        later = await self.propose(view, len(places), scene.tokens, seeds)
        before = [drawn(c) for c in wanted]
        if [drawn(c) for c in later] == before:
            return
        law = laws.FORKS if await self.moves(scene) else laws.SEED
        self.same(law, wanted, later, how)

    async def settled(self, view: View, scene: Scene, found: Sequence[Candidate]) -> None:
        """Before another law is told: is it chance?"""
        __tracebackhide__ = True
        for _ in range(5):
            await self.again(view, scene, found, range(scene.n), "drawn again")

    async def moves(self, scene: Scene) -> bool:
        """Whether drawing moves a view on: two new views draw other candidates the second time,
        and both the same."""
        __tracebackhide__ = True
        seeds = [scene.seed + i for i in range(3)]
        told = []
        for _ in range(2):
            view = await self.open(scene.question)
            try:
                twice = [await self.propose(view, 3, 40, seeds) for _ in range(2)]
            finally:
                await self.close(view)
            told.append([[drawn(c) for c in found] for found in twice])
        return told[0] == told[1] and told[0][0] != told[0][1]

    async def aborts(
        self, view: View, scene: Scene, free: Sequence[Candidate], position: int
    ) -> None:
        __tracebackhide__ = True
        detectors = (AbortAt(position=position),)
        found = await self.propose(view, scene.n, scene.tokens, scene.seeds, detectors)
        for candidate, whole in zip(found, free, strict=True):
            which = f"candidate {candidate.index} of {candidate.n_tokens} tokens"
            verdict = candidate.verdict
            if verdict is None:
                if candidate.n_tokens > position:
                    seen = f"{which} has no verdict"
                    broken(laws.VERDICT, self.who, seen, f"one at token {position}")
                continue
            if (verdict.position, candidate.n_tokens) != (position, position):
                seen = f"{which}: a verdict at {verdict.position}"
                broken(laws.VERDICT, self.who, seen, f"its end at token {position}")
            if self.seeded and candidate.token_ids != whole.token_ids[:position]:
                seen = f"{shown(whole)} without a detector; with one: {shown(candidate)}"
                broken(laws.VERDICT, self.who, seen, "its beginning")

    async def adopts(self, view: View, scene: Scene) -> None:
        """A step committed among siblings, against the same step drawn alone."""
        __tracebackhide__ = True
        if not self.seeded:
            return
        many, one = await self.open(scene.question), await self.open(scene.question)
        try:
            among = (await self.propose(many, 3, scene.tokens, [scene.seed + i for i in range(3)]))[
                1
            ]
            (alone,) = await self.propose(one, 1, scene.tokens, [scene.seed + 1])
            self.same(laws.SEED, [among], [alone], "alone")
            if among.stop is StopReason.EOS or not among.text.strip():
                return
            await self.commit(many, among)
            await self.commit(one, alone)
            after = [await self.propose(v, 2, scene.tokens, [7, 8]) for v in (many, one)]
            self.same(laws.FORKS, after[1], after[0], "where siblings were drawn before")
        finally:
            await self.close(many)
            await self.close(one)

    # -- several views -------------------------------------------------------------------------

    async def together(self, scene: Scene) -> None:
        __tracebackhide__ = True

        async def play(question: str) -> tuple[list[Candidate], list[tuple[int, int]]]:
            __tracebackhide__ = True
            view = await self.open(question)
            try:
                sizes = [(view.stats.logical_length, view.room)]
                first = await self.propose(view, scene.n, scene.tokens, scene.seeds)
                if first[0].stop is not StopReason.EOS and first[0].text.strip():
                    await self.commit(view, first[0])
                    first += await self.propose(view, scene.n, scene.tokens, scene.seeds)
                foreign = Candidate("x", 0, FOREIGN, (1,), StopReason.SEPARATOR, "another")
                await self.commit(view, foreign)
                sizes.append((view.stats.logical_length, view.room))
                return first, sizes
            finally:
                await self.close(view)

        alone = [await play(question) for question in QUESTIONS]
        beside = await asyncio.gather(*(play(question) for question in QUESTIONS))
        if not self.seeded:
            return
        for (one, sizes), (two, others) in zip(alone, beside, strict=True):
            if len(one) != len(two):
                seen = f"{len(one)} candidates alone, {len(two)} beside others"
                broken(laws.INDEPENDENT, self.who, seen, "the same")
            self.same(laws.INDEPENDENT, one, two, "beside other views")
            if sizes != others:
                seen = f"(length, room) {sizes} alone, {others} beside other views"
                broken(laws.INDEPENDENT, self.who, seen, "the same")

    async def closing(self, scene: Scene) -> None:
        __tracebackhide__ = True
        held, tasks = self.in_use(), 0
        for number in range(ROUNDS):
            view = await self.open(scene.question)
            running = asyncio.ensure_future(self.propose(view, 2, 2, scene.seeds))
            if number % 3 == 2:
                await asyncio.sleep(0)
                running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await self.close(view)
            await self.close(view)
            if self.in_use() != held:
                seen = f"in use {held} before, {self.in_use()} after view {number + 1} was closed"
                broken(laws.CLOSE, self.who, seen, "everything freed")
            if number == 2:
                tasks = await _tasks()
        more = await _tasks() - tasks
        if more >= ROUNDS - 3:
            seen = f"{more} asyncio tasks more after {ROUNDS - 3} views were opened and closed"
            broken(laws.CLOSE, self.who, seen, "none: a view's tasks end with it")

    async def ending(self, scene: Scene) -> None:
        __tracebackhide__ = True
        del scene
        for _ in range(2):
            await self.call(self.policy.aclose(), "aclose")
        left = await _tasks()
        if left:
            seen = f"{left} asyncio task(s) after `aclose`"
            broken(laws.CLOSE, self.who, seen, "none: cancel and await what the policy started")


async def _tasks() -> int:
    """Tasks of the loop but this one; those that are ending have their turns to do so."""
    for turn in range(60):
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0.0 if turn < 20 else 0.01)
    return len(asyncio.all_tasks()) - 1

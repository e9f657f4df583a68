"""What must hold of a policy's views; the laws stand in `policies`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kvrescue.detectors.base import Detector, DetectorState, Source, TokenEvent
from kvrescue.policies.base import Policy, View
from kvrescue.sampling import Sampling
from kvrescue.testing import policies as laws
from kvrescue.testing.laws import Law, broken
from kvrescue.testing.policies import QUESTIONS, Scene
from kvrescue.types import CacheStats, Candidate, Question, StopReason, Verdict

__all__ = ["AbortAt", "Checks"]

NAME = "base"
ROUNDS = 12
"""Views that are opened and closed one after the other, to find what is not freed."""
FOREIGN = "Then 3 + 4 = 7.\n\n"
PLENTY = 512


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


class Checks:
    """The laws on one policy."""

    def __init__(self, policy: Policy, who: str, *, interval: int, seeded: bool) -> None:
        self.policy, self.who = policy, who
        self.interval, self.seeded = interval, seeded
        source = policy.source
        if not isinstance(source, Source) or source.vocab_size < 1:
            broken(laws.RUNS, who, f"source = {source!r}", "a Source with a vocab_size")

    async def open(self, question: str) -> View:
        __tracebackhide__ = True
        view = await self.policy.open(Question(question), NAME)
        if not isinstance(view, View):
            broken(laws.RUNS, self.who, f"open returned {view!r}", "a kvrescue View")
        self.audit(view, None)
        return view

    async def propose(
        self,
        view: View,
        n: int,
        tokens: int,
        seeds: Sequence[int],
        detectors: Sequence[Detector] = (),
        max_tokens: int = PLENTY,
    ) -> list[Candidate]:
        """Candidates in order of index, known to be well-formed and within their limits."""
        __tracebackhide__ = True
        sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, max_step_tokens=tokens)
        max_tokens = min(max_tokens, view.room)
        before = view.stats
        found = await view.propose(n, sampling, detectors, list(seeds), max_tokens)
        if not isinstance(found, list | tuple):
            broken(laws.CANDIDATES, self.who, f"a {type(found).__name__}", f"a list of {n}")
        if sorted(c.index for c in found) != list(range(n)):
            seen = f"indices {[c.index for c in found]}"
            broken(laws.CANDIDATES, self.who, seen, f"{list(range(n))}")
        found = sorted(found, key=lambda c: c.index)
        for candidate in found:
            self.well_formed(candidate, seeds[candidate.index])
            self.limited(candidate, tokens, max_tokens)
        if view.stats != before:
            seen = f"{before} before and {view.stats} after a proposal"
            broken(laws.FORKS, self.who, seen, "the same statistics")
        return found

    def well_formed(self, candidate: Candidate, seed: int) -> None:
        __tracebackhide__ = True
        which = f"candidate {candidate.index}"
        facts = {
            "policy": (candidate.policy, NAME),
            "seed": (candidate.seed, seed),
            "aborted": (candidate.stop is StopReason.ABORTED, candidate.verdict is not None),
        }
        for fact, (seen, expected) in facts.items():
            if seen != expected:
                broken(
                    laws.CANDIDATES,
                    self.who,
                    f"{which}: {fact} {seen!r}",
                    f"{expected!r}" + (" (it has a verdict)" * (expected is True)),
                )
        entropies = candidate.entropies
        if entropies and (
            len(entropies) != candidate.n_tokens or not all(math.isfinite(e) for e in entropies)
        ):
            seen = f"{which}: {len(entropies)} entropies for {candidate.n_tokens} tokens"
            broken(laws.CANDIDATES, self.who, seen, "one finite entropy per token, or none")

    def limited(self, candidate: Candidate, tokens: int, max_tokens: int) -> None:
        __tracebackhide__ = True
        cap = min(tokens, max_tokens)
        which = f"candidate {candidate.index}"
        if candidate.n_tokens > cap:
            seen = f"{which} has {candidate.n_tokens} tokens"
            broken(laws.LIMITS, self.who, seen, f"at most {cap}")
        cut = candidate.stop in (StopReason.LENGTH, StopReason.CONTEXT)
        reason = StopReason.LENGTH if cap == tokens else StopReason.CONTEXT
        if cut and candidate.stop is not reason:
            seen = f"{which} of {candidate.n_tokens} tokens says {candidate.stop.value!r}"
            broken(
                laws.LIMITS,
                self.who,
                seen,
                f"{reason.value!r} with max_step_tokens {tokens} and max_tokens {max_tokens}",
            )

    # -- statistics ----------------------------------------------------------------------------

    def audit(self, view: View, before: CacheStats | None) -> None:
        """Statistics that agree with themselves, and with what they were."""
        __tracebackhide__ = True
        stats = view.stats
        told: list[tuple[bool, str]] = []
        if stats.physical_length or stats.peak_physical:  # else there is no cache to measure
            total = stats.physical_length + stats.dropped
            told = [
                (total == stats.logical_length, "physical_length + dropped = logical_length"),
                (stats.physical_length <= stats.peak_physical, "physical_length <= peak_physical"),
                ((stats.dropped > 0) == (stats.evictions > 0), "evictions where entries dropped"),
            ]
            if stats.bound is None:
                told.append((stats.dropped == 0, "nothing dropped without a bound"))
            else:
                most = stats.bound + self.interval
                told += [
                    (stats.physical_length < most, f"physical_length below B' + interval = {most}"),
                    (stats.peak_physical < most, f"peak_physical below B' + interval = {most}"),
                    (
                        stats.evictions > 0 or stats.logical_length < most,
                        f"an eviction at a length of {most} or more",
                    ),
                ]
        if before is not None:
            for name in ("logical_length", "peak_physical", "evictions", "dropped"):
                grown = getattr(stats, name) >= getattr(before, name)
                told.append((grown, f"{name} never falls (it was {getattr(before, name)})"))
        for holds, rule in told:
            if not holds:
                broken(laws.STATS, self.who, f"{stats}", rule)

    async def commit(self, view: View, step: Candidate, law: Law = laws.COMMIT) -> int:
        """Commit a step; by how many tokens the view grew (0 where it has no length)."""
        __tracebackhide__ = True
        before, room = view.stats, view.room
        await view.commit(step)
        after = view.stats
        self.audit(view, before)
        grown = after.logical_length - before.logical_length
        if before.logical_length and room - view.room != grown:
            broken(
                laws.STATS,
                self.who,
                f"the length grew by {grown} and room shrank by {room - view.room}",
                "the same number",
            )
        return grown

    # -- one scene -----------------------------------------------------------------------------

    async def scene(self, scene: Scene) -> None:
        __tracebackhide__ = True
        view, twin = await self.open(scene.question), await self.open(scene.question)
        try:
            self.alike(view, twin, laws.REOPEN, "opened again")
            for turn, what in enumerate(scene.turns):
                if not await self.turn(view, twin, scene, what, turn):
                    return
            await self.draws(view, twin, scene)
        finally:
            await view.close()
            await twin.close()

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
            return False
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
            turned = await self.propose(view, n, tokens, seeds[::-1])
            self.same(laws.SEED, drawn, turned[::-1], "in another order")
            for index in range(n):
                alone = await self.propose(view, 1, tokens, seeds[index : index + 1])
                self.same(laws.SEED, drawn[index : index + 1], alone, "alone")
            short = max(1, tokens // 2)
            cut = await self.propose(view, n, tokens, seeds, max_tokens=short)
            for whole, part in zip(drawn, cut, strict=True):
                if whole.token_ids[: part.n_tokens] != part.token_ids:
                    seen = f"candidate {part.index} is {_shown(whole)}; cut: {_shown(part)}"
                    broken(laws.LIMITS, self.who, seen, "its beginning")
            if not scene.turns:
                other = await self.propose(twin, n, tokens, seeds)
                self.same(laws.REOPEN, drawn, other, "from a view opened again")
        position = max(1, tokens // 2)
        await self.aborts(view, scene, drawn, position)
        await self.adopts(view, scene)

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
                seen = f"{_shown(whole)} without a detector; with one: {_shown(candidate)}"
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
            await many.close()
            await one.close()

    def same(
        self, law: Law, first: Sequence[Candidate], then: Sequence[Candidate], how: str
    ) -> None:
        __tracebackhide__ = True
        for one, two in zip(first, then, strict=True):
            if (one.token_ids, one.text, one.stop) != (two.token_ids, two.text, two.stop):
                seen = f"seed {one.seed} gives {_shown(one)}; {how}: {_shown(two)}"
                broken(law, self.who, seen, "the same candidate")

    # -- several views -------------------------------------------------------------------------

    async def together(self, scene: Scene) -> None:
        __tracebackhide__ = True

        async def play(question: str) -> list[Candidate]:
            view = await self.open(question)
            try:
                first = await self.propose(view, scene.n, scene.tokens, scene.seeds)
                if first[0].stop is not StopReason.EOS and first[0].text.strip():
                    await self.commit(view, first[0])
                    first += await self.propose(view, scene.n, scene.tokens, scene.seeds)
                return first
            finally:
                await view.close()

        alone = [await play(question) for question in QUESTIONS]
        beside = await asyncio.gather(*(play(question) for question in QUESTIONS))
        if self.seeded:
            for one, two in zip(alone, beside, strict=True):
                if len(one) != len(two):
                    seen = f"{len(one)} candidates alone, {len(two)} beside others"
                    broken(laws.INDEPENDENT, self.who, seen, "the same")
                self.same(laws.INDEPENDENT, one, two, "beside other views")

    async def closing(self, scene: Scene) -> None:
        __tracebackhide__ = True
        held = self.in_use()
        for number in range(ROUNDS):
            view = await self.open(scene.question)
            running = asyncio.ensure_future(self.propose(view, 2, 2, scene.seeds))
            if number % 3 == 2:
                await asyncio.sleep(0)
                running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await view.close()
            await view.close()
            if self.in_use() != held:
                seen = f"in use {held} before, {self.in_use()} after view {number + 1} was closed"
                broken(laws.CLOSE, self.who, seen, "everything freed")

    async def ending(self, scene: Scene) -> None:
        del scene
        await self.policy.aclose()
        await self.policy.aclose()

    def in_use(self) -> object:
        """What the policy says it holds; None where it does not say."""
        for part in (self.policy, getattr(self.policy, "engine", None)):
            found: Any = getattr(part, "in_use", None)
            if found is not None:
                found = found() if callable(found) else found
                return dict(found) if isinstance(found, Mapping) else found
        return None


def _shown(candidate: Candidate) -> str:
    return f"{candidate.text[:60]!r} ({candidate.n_tokens} tokens, {candidate.stop.value})"

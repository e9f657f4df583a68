"""A policy's views as the kit uses them: every call is awaited in time, every result is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvrescue.detectors.base import Detector, Source
from kvrescue.policies.base import Policy, View
from kvrescue.sampling import Sampling
from kvrescue.testing import policies as laws
from kvrescue.testing.laws import Law, LawBroken, broken
from kvrescue.testing.loops import ENDS, awaited
from kvrescue.types import CacheStats, Candidate, Question, StopReason

__all__ = ["Drawing", "drawn", "shown", "stop_fault"]

NAME = "base"
PLENTY = 512


class Drawing:
    """One policy, and what must hold of each call."""

    def __init__(
        self, policy: Policy, who: str, *, interval: int, seeded: bool, seconds: float
    ) -> None:
        self.policy, self.who = policy, who
        self.interval, self.seeded, self.seconds = interval, seeded, seconds
        self.opened: set[str] = set()
        """Questions that could be opened."""
        self.live: list[View] = []
        """Views that are open."""
        self.carry: dict[int, str] = {}
        """By view, the text of a step that a limit cut: a separator may begin there."""
        source = policy.source
        if not isinstance(source, Source) or source.vocab_size < 1:
            broken(laws.RUNS, who, f"source = {source!r}", "a Source with a vocab_size")

    async def call(self, call: Any, what: str, then: str = "") -> Any:
        """What a method of the policy or a view returns, in time."""
        __tracebackhide__ = True
        return await awaited(
            call, what, self.who, runs=laws.RUNS, ends=ENDS, seconds=self.seconds, then=then
        )

    async def open(self, question: str) -> View:
        __tracebackhide__ = True
        try:
            view = await self.call(self.policy.open(Question(question), NAME), "open")
        except LawBroken:
            raise
        except Exception as error:
            if question not in self.opened:
                raise
            seen = f"a view that opened before cannot be opened with {len(self.live)} others open, "
            seen += f"all before them closed: {type(error).__name__}: {error}"
            broken(laws.CLOSE, self.who, seen, "a view")
        if not isinstance(view, View):
            broken(laws.RUNS, self.who, f"open returned {view!r}", "a kvrescue View")
        if any(view is other for other in self.live):
            seen = "`open` returned a view that is open already"
            broken(laws.INDEPENDENT, self.who, seen, "a new view for every trajectory")
        self.opened.add(question)
        self.live.append(view)
        self.audit(view, None)
        return view

    async def close(self, view: View) -> None:
        __tracebackhide__ = True
        self.live = [other for other in self.live if other is not view]
        self.carry.pop(id(view), None)
        await self.call(view.close(), "close")

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
        call = view.propose(n, sampling, detectors, list(seeds), max_tokens)
        found = await self.call(call, "propose", f", asked for {n} candidates")
        if not isinstance(found, list | tuple):
            broken(laws.CANDIDATES, self.who, f"a {type(found).__name__}", f"a list of {n}")
        for other in found:
            if not isinstance(other, Candidate):
                seen = f"a list with a {type(other).__name__}, {other!r}"
                broken(laws.CANDIDATES, self.who, seen, "kvrescue Candidates")
        if sorted(c.index for c in found) != list(range(n)):
            seen = f"indices {[c.index for c in found]}"
            broken(laws.CANDIDATES, self.who, seen, f"{list(range(n))}")
        found = sorted(found, key=lambda c: c.index)
        for candidate in found:
            self.well_formed(candidate, seeds[candidate.index])
            self.limited(candidate, tokens, max_tokens)
            stop = stop_fault(candidate, sampling.separator, self.carry.get(id(view), ""))
            if stop:
                seen = f"candidate {candidate.index} is {shown(candidate)}"
                broken(laws.STOP, self.who, seen, stop)
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
        }
        for fact, (seen, expected) in facts.items():
            if seen != expected:
                broken(laws.CANDIDATES, self.who, f"{which}: {fact} {seen!r}", f"{expected!r}")
        stop = candidate.stop
        if not isinstance(stop, StopReason):
            broken(laws.CANDIDATES, self.who, f"{which}: stop {stop!r}", "a kvrescue StopReason")
        if (stop is StopReason.ABORTED) != (candidate.verdict is not None):
            has = "with a verdict" if candidate.verdict is not None else "without a verdict"
            wanted = "'aborted' where a detector fired, and only there"
            broken(laws.CANDIDATES, self.who, f"{which}: stop {stop.value!r} {has}", wanted)
        entropies = candidate.entropies
        if entropies and (
            len(entropies) != candidate.n_tokens or not all(math.isfinite(e) for e in entropies)
        ):
            seen = f"{which}: {len(entropies)} entropies for {candidate.n_tokens} tokens"
            broken(laws.CANDIDATES, self.who, seen, "one finite entropy per token, or none")
        ends = candidate.char_ends
        if ends and (
            len(ends) != candidate.n_tokens
            or list(ends) != sorted(ends)
            or not 0 <= ends[0] <= ends[-1] <= len(candidate.text)
        ):
            seen = f"{which}: char_ends {list(ends)} for {candidate.n_tokens} tokens of "
            seen += f"{len(candidate.text)} characters"
            broken(laws.CANDIDATES, self.who, seen, "one per token, growing up to the text's end")

    def limited(self, candidate: Candidate, tokens: int, max_tokens: int) -> None:
        __tracebackhide__ = True
        cap = min(tokens, max_tokens)
        which = f"candidate {candidate.index}"
        if candidate.n_tokens > cap:
            seen = f"{which} has {candidate.n_tokens} tokens"
            broken(laws.LIMITS, self.who, seen, f"at most {cap}")
        cut = candidate.stop in (StopReason.LENGTH, StopReason.CONTEXT)
        reason = StopReason.LENGTH if cap == tokens else StopReason.CONTEXT
        if cut and candidate.n_tokens < cap:
            seen = f"{which} of {candidate.n_tokens} tokens says {candidate.stop.value!r}"
            broken(laws.STOP, self.who, seen, f"a limit that it has reached, of {cap} tokens")
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
        await self.call(view.commit(step), "commit")
        cut = step.stop in (StopReason.LENGTH, StopReason.CONTEXT)
        self.carry[id(view)] = self.carry.get(id(view), "") + step.text if cut else ""
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

    def same(
        self, law: Law, first: Sequence[Candidate], then: Sequence[Candidate], how: str
    ) -> None:
        __tracebackhide__ = True
        for one, two in zip(first, then, strict=True):
            if drawn(one) != drawn(two):
                seen = f"seed {one.seed} gives {shown(one)}; {how}: {shown(two)}"
                broken(law, self.who, seen, "the same candidate")

    def in_use(self) -> object:
        """What the policy says it holds; None where it does not say."""
        for part in (self.policy, getattr(self.policy, "engine", None)):
            found: Any = getattr(part, "in_use", None)
            if found is not None:
                found = found() if callable(found) else found
                return dict(found) if isinstance(found, Mapping) else found
        return None


def stop_fault(candidate: Candidate, separator: str, carry: str) -> str:
    """What should have ended a candidate instead; empty where text and stop reason agree.

    A separator that began in `carry`, a step cut by a limit, belongs to that step. The token that
    completes a separator may hold white space behind it.
    """
    text, stop = candidate.text, candidate.stop
    for size in range(len(separator) - 1, 0, -1):
        rest = separator[size:]
        if carry.endswith(separator[:size]) and text.startswith(rest):
            text = text[len(rest) :]
            break
    at = text.find(separator)
    behind = text[at + len(separator) :] if at >= 0 else ""
    if behind.strip() or separator in behind:
        return f"its end after {text[: at + len(separator)][-40:]!r}: a step has one separator"
    if stop is StopReason.SEPARATOR and at < 0:
        return f"another stop reason: no {separator!r} ends it (`eos` where nothing follows)"
    if stop not in (StopReason.SEPARATOR, StopReason.ABORTED) and at >= 0:
        return "'separator': that is what it ends with"
    return ""


def drawn(candidate: Candidate) -> tuple[object, ...]:
    return candidate.token_ids, candidate.text, candidate.stop


def shown(candidate: Candidate) -> str:
    return f"{candidate.text[:60]!r} ({candidate.n_tokens} tokens, {candidate.stop.value})"

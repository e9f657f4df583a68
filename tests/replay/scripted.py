"""Policies without models whose detectors are real: pieces of text, entropies, failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvrescue.detectors.bank import DetectorBank
from kvrescue.detectors.base import Detector, DetectorState, Source, TokenEvent
from kvrescue.errors import CapacityError
from kvrescue.policies.base import Policy, Sampling, View
from kvrescue.scorers.base import Scorer
from kvrescue.types import (
    CacheStats,
    Candidate,
    Context,
    Question,
    StopReason,
    Verdict,
)
from tests.core.fakes import score_of

PIECES = ("a", " b", "", "é文", "7", ".\n\n")
EOS = len(PIECES)


class Letters(Detector):
    """Fires once it has read so many characters of a kind: on text, and on text alone."""

    kind: ClassVar[str] = "letters"
    letter: str = "a"
    most: int = 2

    def start(self) -> DetectorState:
        return _Letters(self)


class _Letters(DetectorState):
    def __init__(self, options: Letters) -> None:
        self.options, self.text, self.read = options, "", 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self.text += event.text
        self.read += 1
        count = self.text.count(self.options.letter)
        if count < self.options.most:
            return None
        return Verdict("letters", "too many", self.read, count, self.options.most, len(self.text))


@dataclass(frozen=True)
class Habits:
    """What a scripted policy tends to do; chances."""

    eos: float = 0.1
    blank: float = 0.0
    breaks: float = 0.0
    """Of failing when it opens, draws or advances."""
    context: int = 40
    longer: int = 0
    """Tokens that a foreign step takes on top here."""


class ScriptedPolicy(Policy):
    def __init__(self, habits: Habits) -> None:
        self.habits = habits

    @property
    def source(self) -> Source:
        return Source(vocab_size=10 + self.habits.context, max_step_tokens=512)

    async def open(self, question: Question, name: str) -> ScriptedView:
        view = ScriptedView(self.habits, question, name)
        view.may_break("open")
        return view


class ScriptedView(View):
    def __init__(self, habits: Habits, question: Question, name: str) -> None:
        self.habits, self.name = habits, name
        self.history = [question.text]
        self.length = len(question.text)
        self.seed = 0

    def may_break(self, where: str) -> None:
        if self.chance(where).random() < self.habits.breaks:
            raise RuntimeError(f"{where} broke")

    def chance(self, *parts: object) -> random.Random:
        return random.Random(f"{self.name}/{self.seed}/{'|'.join(self.history)}/{parts}")

    async def propose(
        self,
        n: int,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        max_tokens: int,
    ) -> list[Candidate]:
        self.seed = seeds[0]
        for _ in range(self.chance("wait").randrange(4)):
            await asyncio.sleep(0)
        self.may_break("draw")
        cap = min(sampling.max_step_tokens, max_tokens)
        return [self.draw(i, seed, detectors, cap) for i, seed in enumerate(seeds)]

    def draw(self, index: int, seed: int, detectors: Sequence[Detector], cap: int) -> Candidate:
        chance = self.chance("draw", seed)
        blank = chance.random() < self.habits.blank
        bank = DetectorBank(detectors)
        text, tokens, entropies, ends = "", [], [], []
        stop, verdict = StopReason.CONTEXT, None
        while len(tokens) < cap:
            token = 2 if blank and len(tokens) < 2 else 5 if blank else chance.randrange(EOS)
            if chance.random() < self.habits.eos:
                token = EOS
            tokens.append(token)
            entropies.append(chance.random())
            ends.append(len(text))
            if token == EOS:
                stop = StopReason.EOS
                break
            piece = "\n\n" if blank and token == 5 else PIECES[token]
            text += piece
            ends[-1] = len(text)
            verdict = bank.update(TokenEvent(token, piece, entropies[-1])) if detectors else None
            if verdict is not None:
                stop = StopReason.ABORTED
                break
            if token == 5:
                stop = StopReason.SEPARATOR
                break
        return Candidate(
            self.name,
            index,
            text,
            tuple(tokens),
            stop,
            "pieces",
            tuple(entropies),
            verdict,
            seed,
            tuple(ends),
        )

    async def commit(self, candidate: Candidate) -> None:
        await asyncio.sleep(0)
        self.may_break("advance")
        foreign = candidate.policy != self.name
        tokens = candidate.n_tokens + self.habits.longer * foreign
        if tokens > self.room:
            raise CapacityError(f"{self.name} is full")
        self.length += tokens
        self.history.append(candidate.text)

    async def close(self) -> None:
        self.may_break("close")

    @property
    def stats(self) -> CacheStats:
        held = min(self.length, 12)
        return CacheStats(self.length, held, 13, self.length // 12, self.length - held, 12)

    @property
    def room(self) -> int:
        return self.habits.context - self.length


class MoodyScorer(Scorer):
    """Scores that are wrong in every way there is."""

    def __init__(self, wrong: float) -> None:
        self.wrong = wrong

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        await asyncio.sleep(0)
        mood = random.Random(f"{context.text}{[c.seed for c in candidates]}")
        if mood.random() < self.wrong / 2:
            if mood.random() < 0.5:
                raise RuntimeError("in a mood")
            return [0.5] * (len(candidates) + 1)
        scores = [score_of(context.text, candidate.text) for candidate in candidates]
        bad = [float("nan"), float("inf"), 1.5, -0.25, "much", None]
        return [mood.choice(bad) if mood.random() < self.wrong else s for s in scores]  # type: ignore[misc]

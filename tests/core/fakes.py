"""Policies and scorers without models: everything they do is a function of text and seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from kvrescue.detectors.base import Detector, DetectorState, Source, TokenEvent
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

WORDS = ("", " \n\n", "a\n\n", "b\n\n", "c d\n\n", "e \\boxed{7}\n\n", "loop loop loop")


class _Silent(DetectorState):
    def update(self, event: TokenEvent) -> Verdict | None:
        return None


class FakeDetector(Detector):
    """Its presence lets a fake policy flag candidates."""

    kind: ClassVar[str] = "fake"

    level: float = 1.0

    def start(self) -> DetectorState:
        return _Silent()


@dataclass(frozen=True)
class Habits:
    """What a fake policy tends to do."""

    flagged: float = 0.0
    eos: float = 0.1
    words: tuple[str, ...] = WORDS


def draw(
    name: str,
    index: int,
    history: Sequence[str],
    seed: int,
    screened: bool,
    cap: int,
    habits: Habits,
) -> Candidate:
    """The candidate that a fake policy draws; the oracle calls this, too."""
    chance = random.Random(f"{name}/{'|'.join(history)}/{seed}")
    text = chance.choice(habits.words)
    tokens = tuple(range(1, 1 + max(1, len(text.split()))))
    stop, verdict = StopReason.SEPARATOR, None
    if chance.random() < habits.flagged and screened:
        stop, verdict = StopReason.ABORTED, Verdict("fake", "flagged", 1, 2.0, 1.0)
    elif chance.random() < habits.eos:
        stop = StopReason.EOS
    if len(tokens) > cap:
        tokens, text = tokens[:cap], " ".join(text.split()[:cap])
        stop = stop if verdict else StopReason.CONTEXT
    return Candidate(name, index, text, tokens, stop, verdict=verdict, seed=seed)


@dataclass
class Log:
    """What the views of a policy went through."""

    opened: int = 0
    closed: list[int] = field(default_factory=list)
    proposals: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        """Every opened view was closed exactly once."""
        return sorted(self.closed) == list(range(self.opened))


Trouble = Callable[[str], None]


class FakePolicy(Policy):
    """Draws from `Habits`; `trouble(where)` may raise at any point."""

    def __init__(
        self,
        habits: Habits | None = None,
        *,
        context: int = 4096,
        prompt: int = 3,
        shuffle: int | None = None,
        trouble: Trouble | None = None,
        delay: float = 0.0,
    ) -> None:
        self.habits = habits or Habits()
        self.context = context
        self.prompt = prompt
        self.shuffle = shuffle
        self.trouble = trouble or (lambda where: None)
        self.delay = delay
        self.log = Log()
        self.finished = False
        self.in_flight = 0
        self.most_in_flight = 0

    @property
    def source(self) -> Source:
        return Source(vocab_size=10, max_step_tokens=512)

    async def open(self, question: Question, name: str) -> FakeView:
        await asyncio.sleep(self.delay)
        self.trouble("open")
        view = FakeView(self, name, self.log.opened)
        self.log.opened += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return view

    async def aclose(self) -> None:
        self.trouble("aclose")
        self.finished = True


class FakeView(View):
    def __init__(self, policy: FakePolicy, name: str, number: int) -> None:
        self.policy = policy
        self.name = name
        self.number = number
        self.history: list[str] = []
        self.length = policy.prompt

    async def propose(
        self,
        n: int,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        max_tokens: int,
    ) -> list[Candidate]:
        await asyncio.sleep(self.policy.delay)
        self.policy.trouble("propose")
        self.policy.log.proposals.append((n, tuple(seeds), max_tokens))
        cap = min(sampling.max_step_tokens, max_tokens)
        found = [
            draw(
                self.name,
                index,
                self.history,
                seeds[index],
                bool(detectors),
                cap,
                self.policy.habits,
            )
            for index in range(n)
        ]
        if self.policy.shuffle is not None:
            random.Random(self.policy.shuffle).shuffle(found)
        return found

    async def commit(self, candidate: Candidate) -> None:
        await asyncio.sleep(self.policy.delay)
        self.policy.trouble("commit")
        self.policy.log.commits.append(candidate.text)
        self.history.append(candidate.text)
        self.length += candidate.n_tokens

    async def close(self) -> None:
        self.policy.log.closed.append(self.number)
        self.policy.in_flight -= 1
        self.policy.trouble("close")

    @property
    def stats(self) -> CacheStats:
        return CacheStats(logical_length=self.length, physical_length=self.length)

    @property
    def room(self) -> int:
        return self.policy.context - self.length


def score_of(context_text: str, text: str, levels: int = 4) -> float:
    """A score with many ties."""
    return random.Random(f"{context_text}#{text}").randrange(levels + 1) / levels


class FakeScorer(Scorer):
    def __init__(
        self,
        change: Callable[[list[float]], object] | None = None,
        trouble: Trouble | None = None,
        delay: float = 0.0,
    ) -> None:
        self.change = change or (lambda scores: scores)
        self.trouble = trouble or (lambda where: None)
        self.delay = delay
        self.asked: list[list[str]] = []
        self.released: list[int] = []
        self.trajectories: set[int] = set()
        self.finished = False

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        await asyncio.sleep(self.delay)
        self.trouble("score")
        self.trajectories.add(context.trajectory)
        self.asked.append([candidate.text for candidate in candidates])
        scores = [score_of(context.text, candidate.text) for candidate in candidates]
        return self.change(scores)  # type: ignore[return-value]

    async def release(self, context: Context) -> None:
        self.trouble("release")
        self.released.append(context.trajectory)

    async def aclose(self) -> None:
        self.finished = True


def with_index(candidate: Candidate, index: int) -> Candidate:
    return replace(candidate, index=index)

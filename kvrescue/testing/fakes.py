"""Policies and scorers without models: everything they do is a function of text and seed.

They keep every law of `check_policy` and `check_scorer`, cost microseconds, and log what happens to
them, so that selectors and reports can be tested on thousands of runs.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from kvrescue.detectors.bank import DetectorBank
from kvrescue.detectors.base import Detector, Source, TokenEvent
from kvrescue.policies.base import Policy, View
from kvrescue.sampling import Sampling
from kvrescue.scorers.base import Scorer
from kvrescue.types import CacheStats, Candidate, Context, Question, StopReason, Verdict

__all__ = [
    "WORDS",
    "FakePolicy",
    "FakeScorer",
    "FakeView",
    "Habits",
    "Log",
    "Record",
    "Trouble",
    "draw",
    "score_of",
]

WORDS = ("\n\n", " \n\n", "a\n\n", "b\n\n", "c d\n\n", "e \\boxed{7}\n\n", "loop loop loop\n\n")
"""Texts of scripted candidates: empty, blank, ordinary, an answer, a loop."""

Trouble: TypeAlias = Callable[[str], None]
"""Told where a fake is ("open", "propose", "commit", "close", "score", ...); may raise."""


def _calm(where: str) -> None:
    del where


@dataclass(frozen=True)
class Habits:
    """What a fake policy tends to do."""

    flagged: float = 0.0
    """How often a candidate is aborted where any detector screens the proposer."""
    eos: float = 0.1
    words: tuple[str, ...] = WORDS
    """Steps to draw from."""


def draw(
    name: str,
    index: int,
    history: Sequence[str],
    seed: int,
    screened: bool,
    cap: int,
    habits: Habits,
    cut: StopReason = StopReason.CONTEXT,
) -> Candidate:
    """The candidate that a fake policy draws after `history`; a token is a word.

    `cut` is the stop reason of a step that does not fit `cap` tokens.
    """
    chance = random.Random(f"{name}/{'|'.join(history)}/{seed}")
    text = chance.choice(habits.words)
    pieces = _pieces(text)
    stop, verdict = StopReason.SEPARATOR, None
    if chance.random() < habits.flagged and screened:
        stop, verdict = StopReason.ABORTED, Verdict("fake", "flagged", 1, 2.0, 1.0)
    elif chance.random() < habits.eos:
        stop = StopReason.EOS
        pieces[-1] = pieces[-1].removesuffix("\n\n")
    if len(pieces) > cap:
        pieces = pieces[:cap]
        stop = stop if verdict else cut
    tokens = tuple(range(1, 1 + len(pieces)))
    return Candidate(name, index, "".join(pieces), tokens, stop, verdict=verdict, seed=seed)


def _pieces(text: str) -> list[str]:
    """Words with the space before them; the last one with what follows."""
    return re.findall(r"\s*\S+(?:\s+$)?", text) or [text]


def _screened(candidate: Candidate, detectors: Sequence[Detector]) -> Candidate:
    """The candidate as detectors leave it."""
    bank, pieces = DetectorBank(detectors), _pieces(candidate.text)
    for count, (token, text) in enumerate(zip(candidate.token_ids, pieces, strict=True), 1):
        verdict = bank.update(TokenEvent(token, text, 1.0))
        if verdict is not None:
            return replace(
                candidate,
                text="".join(pieces[:count]),
                token_ids=candidate.token_ids[:count],
                stop=StopReason.ABORTED,
                verdict=verdict,
            )
    return candidate


@dataclass
class Log:
    """What the views of a policy went through."""

    opened: int = 0
    closed: list[int] = field(default_factory=list)
    proposals: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)
    """n, seeds, max_tokens."""
    detectors: list[tuple[Detector, ...]] = field(default_factory=list)
    """One entry per proposal."""
    drawn: list[tuple[int, tuple[Candidate, ...]]] = field(default_factory=list)
    """Per proposal: how many steps the view had committed, and the candidates by index."""
    commits: list[str] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        """Every opened view was closed exactly once."""
        return sorted(self.closed) == list(range(self.opened))


class FakePolicy(Policy):
    """Draws from `Habits`; `trouble(where)` may raise at any point.

    `context` is its context limit and `prompt` the length of every prompt, in tokens; with
    `shuffle` a view returns its candidates in that order instead of by index.
    """

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
        self.trouble = trouble or _calm
        self.delay = delay
        self.log = Log()
        self.finished = False
        self.in_flight = 0
        self.most_in_flight = 0

    @property
    def source(self) -> Source:
        return Source(vocab_size=10, max_step_tokens=512)

    @property
    def in_use(self) -> int:
        """Open views."""
        return self.in_flight

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
    """The steps that were committed."""

    def __init__(self, policy: FakePolicy, name: str, number: int) -> None:
        self.policy = policy
        self.name = name
        self.number = number
        self.history: list[str] = []
        self.length = policy.prompt
        self.open = True

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
        self.policy.log.detectors.append(tuple(detectors))
        cap = min(sampling.max_step_tokens, max_tokens)
        cut = StopReason.LENGTH if cap == sampling.max_step_tokens else StopReason.CONTEXT
        found = [self._draw(index, seeds[index], detectors, cap, cut) for index in range(n)]
        self.policy.log.drawn.append((len(self.history), tuple(found)))
        if self.policy.shuffle is not None:
            random.Random(self.policy.shuffle).shuffle(found)
        return found

    def _draw(
        self, index: int, seed: int, detectors: Sequence[Detector], cap: int, cut: StopReason
    ) -> Candidate:
        screened, habits = bool(detectors), self.policy.habits
        found = draw(self.name, index, self.history, seed, screened, cap, habits, cut)
        return found if found.verdict else _screened(found, detectors)

    async def commit(self, candidate: Candidate) -> None:
        await asyncio.sleep(self.policy.delay)
        self.policy.trouble("commit")
        self.policy.log.commits.append(candidate.text)
        self.history.append(candidate.text)
        self.length += candidate.n_tokens

    async def close(self) -> None:
        self.policy.log.closed.append(self.number)
        self.policy.in_flight -= self.open
        self.open = False
        self.policy.trouble("close")

    @property
    def stats(self) -> CacheStats:
        return CacheStats(self.length, self.length, self.length)

    @property
    def room(self) -> int:
        return self.policy.context - self.length


class Record(list[Any]):
    """A list that grows on purpose: what a fake was asked. `check_scorer` does not count it."""


def score_of(context_text: str, text: str, levels: int = 4) -> float:
    """A score with many ties."""
    return random.Random(f"{context_text}#{text}").randrange(levels + 1) / levels


class FakeScorer(Scorer):
    """Scores by `score_of`; `change` may spoil the list, `trouble(where)` may raise."""

    def __init__(
        self,
        change: Callable[[list[float]], object] | None = None,
        trouble: Trouble | None = None,
        delay: float = 0.0,
    ) -> None:
        self.change = change or (lambda scores: scores)
        self.trouble = trouble or _calm
        self.delay = delay
        self.asked: list[list[str]] = Record()
        self.contexts: list[str] = Record()
        """Text of the context of each call."""
        self.released: list[int] = Record()
        self._scored: list[int] = Record()
        self.finished = False

    @property
    def trajectories(self) -> set[int]:
        """Those that were scored."""
        return set(self._scored)

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        await asyncio.sleep(self.delay)
        self.trouble("score")
        self._scored.append(context.trajectory)
        self.contexts.append(context.text)
        self.asked.append([candidate.text for candidate in candidates])
        scores = [score_of(context.text, candidate.text) for candidate in candidates]
        return self.change(scores)  # type: ignore[return-value]

    async def release(self, context: Context) -> None:
        self.trouble("release")
        self.released.append(context.trajectory)

    async def aclose(self) -> None:
        self.finished = True

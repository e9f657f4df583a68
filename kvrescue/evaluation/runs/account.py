"""Accounts: from the events of a trajectory to the counts of its record."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvrescue.evaluation.runs.record import Use
from kvrescue.events import (
    CandidateFinished,
    Event,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.types import CacheStats, Candidate, CommittedStep, Solution

__all__ = ["Account", "Accountant"]


@dataclass
class Account:
    """What one trajectory did so far."""

    events: list[Event] = field(default_factory=list)
    """Everything that was told, in order."""
    uses: dict[str, Use] = field(default_factory=dict)
    scored: int = 0
    scored_tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    solution: Solution | None = None
    _written: Counter[str] = field(default_factory=Counter)
    """Committed tokens that a proposer's view holds."""

    def add(self, event: Event) -> None:
        """Take in the next event."""
        self.events.append(event)
        if isinstance(event, TrajectoryStarted):
            self.uses = {name: Use() for name in event.proposers}
            for name, cache in event.caches.items():
                self._change(name, prompt=cache.logical_length, bound=cache.bound)
        elif isinstance(event, CandidateFinished):
            self._generated(event.candidate)
        elif isinstance(event, StepCommitted):
            self._committed(event.step, event.caches)
        elif isinstance(event, TrajectoryFinished):
            self._finished(event.solution)

    def _generated(self, candidate: Candidate) -> None:
        use, n = self.uses[candidate.policy], candidate.n_tokens
        aborted = candidate.verdict is not None
        self._change(
            candidate.policy,
            candidates=use.candidates + 1,
            generated=use.generated + n,
            aborted=use.aborted + aborted,
            aborted_tokens=use.aborted_tokens + n * aborted,
            attended=use.attended + self._attended(candidate.policy, n),
        )

    def _committed(self, step: CommittedStep, caches: Mapping[str, CacheStats]) -> None:
        winner = step.candidate
        pool = [
            candidate
            for candidate, score in zip(step.candidates, step.scores, strict=True)
            if score is not None
        ]
        if len(pool) > 1:
            self.scored += len(pool)
            self.scored_tokens += sum(candidate.n_tokens for candidate in pool)
        for name, use in self.uses.items():
            if name == winner.policy:
                self._change(
                    name,
                    committed_steps=use.committed_steps + 1,
                    committed_tokens=use.committed_tokens + winner.n_tokens,
                )
            elif name in caches and caches[name].logical_length > self._length(name):
                # Views are not advanced after the last step.
                read = caches[name].logical_length - self._length(name)
                attended = use.attended + self._attended(name, read)
                self._change(name, encoded=use.encoded + read, attended=attended)
            if name in caches:
                self._written[name] = caches[name].logical_length - self.uses[name].prompt

    def _finished(self, solution: Solution) -> None:
        self.solution = solution
        self.seconds = time.monotonic() - self.started
        for name, cache in solution.caches.items():
            self._change(
                name,
                logical=cache.logical_length,
                peak_physical=cache.peak_physical,
                evictions=cache.evictions,
            )

    def _length(self, name: str) -> int:
        return self.uses[name].prompt + self._written[name]

    def _attended(self, name: str, n: int) -> int:
        """Entries that `n` tokens after the context attend to, themselves included."""
        bound, length = self.uses[name].bound, self._length(name)
        if bound is None:
            return n * length + n * (n + 1) // 2
        return sum(min(bound, length + i) for i in range(1, n + 1))

    def _change(self, name: str, **fields: int | None) -> None:
        self.uses[name] = dataclasses.replace(self.uses[name], **fields)  # type: ignore[arg-type]


class Accountant:
    """An observer that keeps one account per question in flight."""

    def __init__(self) -> None:
        self._open: dict[str, Account] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrajectoryStarted):
            self._open[event.question.id] = Account()
        question_id = (
            event.question.id
            if isinstance(event, TrajectoryStarted)
            else event.solution.question.id
            if isinstance(event, TrajectoryFinished)
            else event.question_id
        )
        self._open[question_id].add(event)

    def take(self, question_id: str) -> Account:
        """The account of a question, which is then forgotten; empty when it never started."""
        return self._open.pop(question_id, Account())

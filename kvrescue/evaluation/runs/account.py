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
        self._change(
            candidate.policy,
            aborted_tokens=use.aborted_tokens + n * (candidate.verdict is not None),
            attended=use.attended + self._attended(candidate.policy, n),
        )

    def _committed(self, step: CommittedStep, caches: Mapping[str, CacheStats]) -> None:
        pool = [
            candidate
            for candidate, score in zip(step.candidates, step.scores, strict=True)
            if score is not None
        ]
        if len(pool) > 1:
            self.scored += len(pool)
            self.scored_tokens += sum(candidate.n_tokens for candidate in pool)
        for name, use in self.uses.items():
            if name not in caches:
                continue
            # None after the last step, which no view reads.
            read = caches[name].logical_length - self._length(name)
            if name != step.candidate.policy:
                attended = use.attended + self._attended(name, read)
                self._change(name, encoded=use.encoded + read, attended=attended)
            self._written[name] += read

    def _finished(self, solution: Solution) -> None:
        self.solution = solution
        self.seconds = time.monotonic() - self.started
        for name, use in solution.tokens.items():
            self._change(name, **dataclasses.asdict(use))
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
            self._open[event.question_id] = Account()
        self._open[event.question_id].add(event)

    def take(self, question_id: str) -> Account:
        """The account of a question, which is then forgotten; empty when it never started."""
        return self._open.pop(question_id, Account())

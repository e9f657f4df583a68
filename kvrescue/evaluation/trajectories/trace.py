"""Traces: the events of trajectories, put together to what a reader looks at round by round."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvrescue.config import RescueConfig
from kvrescue.errors import RunError
from kvrescue.evaluation.traces import read_events
from kvrescue.events import (
    CandidateFinished,
    Event,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.types import CacheStats, Candidate, Degradation, Question, Solution

__all__ = ["Caps", "Round", "Trajectory", "read_trace", "trajectories"]


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits on a candidate's length, as far as they are known."""

    step: int | None = None
    """Tokens of one candidate; None: unknown (a trace does not tell)."""
    output: int | None = None
    """Committed tokens of the trajectory; None: unknown or unlimited."""

    @classmethod
    def of(cls, config: RescueConfig) -> Caps:
        return cls(config.sampling.max_step_tokens, config.limits.max_output_tokens)

    def saved(self, candidate: Candidate, committed: int) -> int | None:
        """At most how many tokens an abort has saved; None where the limit is unknown.

        Args:
            candidate: the aborted one.
            committed: tokens that the trajectory held when it was drawn.
        """
        if self.step is None:
            return None
        room = self.step if self.output is None else min(self.step, self.output - committed)
        return max(0, room - candidate.n_tokens)


@dataclass(frozen=True, slots=True)
class Round:
    """Candidates that were drawn at once, and what became of them."""

    step: int
    """0-based number of the step they were drawn for."""
    candidates: tuple[Candidate, ...]
    scores: tuple[float | None, ...]
    """One per candidate."""
    chosen: int | None = None
    """Place of the committed candidate; None when nothing was committed."""
    skipped: str | None = None
    """`empty` or `flagged`; `undecided` where the trace ends before the decision."""
    caches: Mapping[str, CacheStats] = field(default_factory=dict)
    """Of every view after the commit."""
    degradations: tuple[Degradation, ...] = ()
    committed: int = 0
    """Tokens that the trajectory held when the round was drawn."""

    @property
    def text(self) -> str | None:
        """The committed step."""
        return None if self.chosen is None else self.candidates[self.chosen].text

    @property
    def source(self) -> str | None:
        """Who wrote it."""
        return None if self.chosen is None else self.candidates[self.chosen].policy


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One problem's way through one setting."""

    question: Question
    seed: int
    proposers: tuple[str, ...]
    rounds: tuple[Round, ...]
    caches: Mapping[str, CacheStats] = field(default_factory=dict)
    """Of every view when it held the prompt only."""
    solution: Solution | None = None
    """None where the trace ends early."""

    @property
    def steps(self) -> list[Round]:
        """The rounds that committed something."""
        return [round_ for round_ in self.rounds if round_.chosen is not None]

    @property
    def stop(self) -> str | None:
        return None if self.solution is None else self.solution.stop.value


@dataclass(slots=True)
class _Growing:
    """A trajectory while its events are read."""

    started: TrajectoryStarted
    rounds: list[Round] = field(default_factory=list)
    drawn: list[Candidate] = field(default_factory=list)
    steps: int = 0
    committed: int = 0
    solution: Solution | None = None

    def add(self, event: CandidateFinished | RoundSkipped | StepCommitted) -> None:
        step = event.step.number if isinstance(event, StepCommitted) else event.step
        if step != self.steps:
            raise RunError(
                f"question {event.question_id!r}: step {step} was told where {self.steps} was due: "
                "the events of several trajectories of one question are mixed"
            )
        if isinstance(event, CandidateFinished):
            self.drawn.append(event.candidate)
            return
        if isinstance(event, RoundSkipped):
            self._close_round(skipped=event.reason)
            return
        winner, pool = event.step.candidate, event.step.candidates
        # By name, not by value: an entropy that is NaN equals nothing.
        names = [(candidate.policy, candidate.index) for candidate in pool]
        places = [
            place for place, name in enumerate(names) if name == (winner.policy, winner.index)
        ]
        if not places or len(event.step.scores) != len(pool):
            raise RunError(f"question {event.question_id!r}: step {step} is not of its own pool")
        self.rounds.append(
            Round(
                step,
                pool,
                event.step.scores,
                places[0],
                caches=event.caches,
                degradations=event.step.degradations,
                committed=self.committed,
            )
        )
        self.drawn.clear()
        self.steps += 1
        self.committed += winner.n_tokens

    def _close_round(self, skipped: str) -> None:
        pool = tuple(self.drawn)
        scores = (None,) * len(pool)
        self.rounds.append(
            Round(self.steps, pool, scores, skipped=skipped, committed=self.committed)
        )
        self.drawn.clear()

    def done(self) -> Trajectory:
        if self.drawn:
            self._close_round(skipped="undecided")
        started = self.started
        return Trajectory(
            started.question,
            started.seed,
            started.proposers,
            tuple(self.rounds),
            started.caches,
            self.solution,
        )


def trajectories(events: Iterable[Event]) -> list[Trajectory]:
    """The trajectories that events tell of, in the order in which they began.

    Events of different questions may be mixed, as `solve_many` tells them; those of one question
    belong to the trajectory of it that began last.

    Raises:
        RunError: the events do not fit together.
    """
    begun: list[_Growing] = []
    latest: dict[str, _Growing] = {}
    for event in events:
        if isinstance(event, TrajectoryStarted):
            latest[event.question_id] = _Growing(event)
            begun.append(latest[event.question_id])
            continue
        asked = event.question_id
        growing = latest.get(asked)
        if growing is None:
            raise RunError(f"question {asked!r}: the trace tells of no start")
        if isinstance(event, TrajectoryFinished):
            growing.solution = event.solution
            del latest[asked]
        else:
            growing.add(event)
    return [growing.done() for growing in begun]


def read_trace(path: str | os.PathLike[str]) -> list[Trajectory]:
    """The trajectories of a file that `kvrescue solve --trace` or a run has written.

    A last line that an interruption has torn is left out.

    Args:
        path: JSON lines, compressed with gzip or not.

    Raises:
        RunError: the file cannot be read, or is no trace.
    """
    try:
        events = list(read_events(path))
    except FileNotFoundError as error:
        raise RunError(f"the trace {str(path)!r} cannot be read: {error.strerror}") from error
    try:
        return trajectories(events)
    except RunError as error:
        raise RunError(f"the trace {str(path)!r}: {error}") from error

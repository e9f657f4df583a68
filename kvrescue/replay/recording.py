"""Recording: the trajectories of a trace, as a replay looks things up in them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvrescue.errors import ReplayError, RunError
from kvrescue.evaluation.traces import read_events
from kvrescue.events import (
    CandidateFinished,
    Event,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.types import CacheStats, Candidate, Degradation, Question

__all__ = ["Failures", "Recorded", "Recording", "Round", "at", "shown", "untold"]

_EXCERPT = 40


@dataclass(frozen=True, slots=True)
class Round:
    """Candidates that were drawn at once, and what was decided."""

    step: int
    """0-based number of the step that they were drawn for."""
    candidates: tuple[Candidate, ...]
    committed: StepCommitted | None
    """None when the round was skipped."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What a proposer's view raised in a run that went on all the same; messages."""

    opening: str | None = None
    drawing: Mapping[int, str] = field(default_factory=dict)
    """By the number of the round."""
    advancing: Mapping[int, str] = field(default_factory=dict)
    """By the number of the step."""
    closing: str | None = None


@dataclass(slots=True)
class Recorded:
    """One trajectory."""

    started: TrajectoryStarted
    rounds: list[Round] = field(default_factory=list)
    """Those that were decided: a trace that breaks off may lack candidates of its last one."""
    finished: TrajectoryFinished | None = None
    """None where the trace breaks off."""
    events: list[Event] = field(default_factory=list)
    _drawn: list[Candidate] = field(default_factory=list)

    @property
    def question(self) -> Question:
        """What was solved."""
        return self.started.question

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.started.seed

    @property
    def where(self) -> str:
        """For messages."""
        return f"question {self.question.id!r}, seed {self.seed}"

    @property
    def steps(self) -> list[StepCommitted]:
        """What was committed, in its order."""
        return [round_.committed for round_ in self.rounds if round_.committed is not None]

    @property
    def degradations(self) -> Sequence[Degradation]:
        """In the order in which they happened, as far as they are told."""
        if self.finished is not None:
            return self.finished.solution.degradations
        return [fault for event in self.steps for fault in event.step.degradations]

    def caches(self, step: int) -> Mapping[str, CacheStats]:
        """Of every view once it had read the steps before `step`."""
        return self.steps[step - 1].caches if step else self.started.caches

    def add(self, event: Event) -> None:
        """Take in the next event."""
        self.events.append(event)
        if isinstance(event, TrajectoryFinished):
            self.finished = event
        elif isinstance(event, CandidateFinished):
            self._drawn.append(event.candidate)
        elif isinstance(event, StepCommitted):
            self.rounds.append(Round(event.step.number, event.step.candidates, event))
            self._drawn.clear()
        elif isinstance(event, RoundSkipped):
            self.rounds.append(Round(event.step, tuple(self._drawn), None))
            self._drawn.clear()

    def failures(self, name: str) -> Failures:
        """What went wrong with the proposer `name`.

        Failures are not told as such: who has no cache after a commit was closed for one, who has
        no candidate in a round did not draw. Messages are told in order.
        """
        messages = deque(fault.message for fault in self.degradations if fault.where == name)

        def message(doing: str) -> str:
            return messages.popleft() if messages else untold(doing)

        opening, drawing, advancing = None, {}, {}
        if self.started.caches and name not in self.started.caches:
            opening = message("opening")
        for draw, round_ in enumerate([] if opening else self.rounds):
            if all(candidate.policy != name for candidate in round_.candidates):
                drawing[draw] = message("drawing")
            event = round_.committed
            if event is not None and event.caches and name not in event.caches:
                advancing[event.step.number] = message("advancing")
                break
        return Failures(opening, drawing, advancing, messages.popleft() if messages else None)


def untold(doing: str) -> str:
    """What went wrong, where the recording does not tell: a run that broke off tells little."""
    return f"failed while {doing} when recorded"


class Recording:
    """Trajectories by question.

    Args:
        trajectories: what was recorded.
        name: what errors call it.
    """

    def __init__(self, trajectories: Iterable[Recorded], name: str = "the recording") -> None:
        self.trajectories = tuple(trajectories)
        self.name = name

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recording:
        """The recording that `kvrescue solve --trace`, `kvrescue bench run --traces` or a
        `TraceWriter` has written.

        Raises:
            ReplayError: it tells of no trajectory.
            RunError: there is no such file, or it is damaged, or no trace.
        """
        name = f"the recording {str(path)!r}"
        try:
            found = cls.of_events(read_events(path), name)
        except FileNotFoundError:
            raise RunError(f"{name} does not exist; make one with kvrescue solve --trace") from None
        if not found.trajectories:
            raise ReplayError(f"{name} tells of no trajectory")
        return found

    @classmethod
    def of_events(cls, events: Iterable[Event], name: str = "the recording") -> Recording:
        """The recording that events are, in the order in which they were told.

        Those of different trajectories may be mixed, also of one question under several seeds.

        Raises:
            ReplayError: the beginning of a trajectory is missing.
        """
        begun: list[Recorded] = []
        latest: dict[tuple[str, int | None], Recorded] = {}
        for event in events:
            if isinstance(event, TrajectoryStarted):
                begun.append(Recorded(event, events=[event]))
                latest[event.question_id, event.seed] = begun[-1]
                latest[event.question_id, None] = begun[-1]  # events that do not tell their seed
                continue
            found = latest.get((event.question_id, event.seed))
            if found is None or found.finished is not None:
                raise ReplayError(
                    f"{name}: question {event.question_id!r}, seed {event.seed}: it does not hold "
                    "the trajectory's beginning"
                )
            found.add(event)
        return cls(begun, name)

    def of(self, question: Question) -> list[Recorded]:
        """The trajectories of a question.

        Raises:
            ReplayError: there is none.
        """
        found = [t for t in self.trajectories if t.question.id == question.id]
        if not found:
            known = sorted({t.question.id for t in self.trajectories})
            listed = ", ".join(map(repr, known[:5])) + (", ..." if len(known) > 5 else "")
            raise ReplayError(
                f"{self.name} does not hold the question {question.id!r} "
                f"({question.text[:_EXCERPT]!r}); it holds {listed}",
                question_id=question.id,
            )
        if any(t.question.text != question.text for t in found):
            raise ReplayError(
                f"{self.name}: the question {question.id!r} had another text when it was recorded",
                question_id=question.id,
            )
        return found


def at(recorded: Recorded, step: int) -> str:
    """Where something happened, for messages."""
    return f"{recorded.where}, step {step}"


def shown(candidate: Candidate) -> str:
    """A candidate in a few words, for messages."""
    text = candidate.text
    excerpt = text if len(text) <= _EXCERPT else text[:_EXCERPT] + "..."
    return f"{candidate.policy}[{candidate.index}] {excerpt!r}"

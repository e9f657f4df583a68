"""What a replay did otherwise than its recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvrescue.errors import ReplayError
from kvrescue.events import CandidateFinished, Event, StepCommitted, TrajectoryFinished
from kvrescue.replay.recording import Recorded, shown
from kvrescue.types import Candidate, Solution, Verdict

__all__ = ["Outcome", "Replayed", "VerdictChange"]

Outcome: TypeAlias = Literal["same", "changed", "diverged"]
"""Equal; other verdicts or scores with the same steps; another step."""


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A candidate that detectors judge otherwise than when it was recorded."""

    draw: int
    step: int
    proposer: str
    index: int
    recorded: Verdict | None
    now: Verdict | None
    """By `replay` where the abort no longer happens: how it would have gone on is not known."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One trajectory, recorded and replayed."""

    recorded: Recorded
    events: tuple[Event, ...]
    """Of the replay, as far as it came."""
    error: ReplayError | None = None
    """Why it did not come to an end."""

    @property
    def solution(self) -> Solution | None:
        """Of the replay; None where it did not come to an end."""
        last = self.events[-1] if self.events else None
        return last.solution if isinstance(last, TrajectoryFinished) else None

    @property
    def outcome(self) -> Outcome:
        """`same`: every event is the recorded one, whatever the rules were; `changed`: the same
        steps were committed, but scores or verdicts, say, are others; `diverged`: other steps were
        committed."""
        if self.diverged_at is not None:
            return "diverged"
        # A recording that breaks off is followed as far as it goes.
        end = None if self.recorded.finished is not None else len(self.events)
        told, now = self.recorded.events[1:end], list(self.events[1:])
        return "same" if told == now else "changed"

    @property
    def diverged_at(self) -> int | None:
        """0-based number of the first step that is not the recorded one, in text or in who wrote
        it, or that only one of both has; None when there is none."""
        was, now = self.recorded.steps, self._steps
        for number, (old, new) in enumerate(zip(was, now, strict=False)):
            if _name(old.step.candidate) != _name(new.step.candidate):
                return number
        if len(was) != len(now):
            return min(len(was), len(now))
        end = self.recorded.finished
        broken = self.error is not None and end is not None
        other_end = (
            end is not None
            and self.solution is not None
            and end.solution.stop is not self.solution.stop
        )
        return len(now) if broken or other_end else None

    @property
    def reason(self) -> str | None:
        """Why the two part; None when they do not."""
        number = self.diverged_at
        if number is None:
            return None
        was, now = self.recorded.steps, self._steps
        if number < min(len(was), len(now)):
            old, new = (steps[number].step.candidate for steps in (was, now))
            return f"recorded {shown(old)}, chosen now {shown(new)}"
        if self.error is not None:
            return str(self.error)
        ends = [self.recorded.finished.solution if self.recorded.finished else None, self.solution]
        old_end, new_end = (end.stop.value if end else "an interruption" for end in ends)
        return f"recorded {len(was)} steps, ended by {old_end}; now {len(now)}, by {new_end}"

    @property
    def verdict_changes(self) -> list[VerdictChange]:
        """Of every candidate that both have, in the order of drawing."""
        was = dict(_candidates(self.recorded.events))
        return [
            VerdictChange(draw, step, name, index, old.verdict, new.verdict)
            for (draw, step, name, index), new in _candidates(self.events)
            if (old := was.get((draw, step, name, index))) is not None
            and _fired(old.verdict) != _fired(new.verdict)
        ]

    @property
    def _steps(self) -> list[StepCommitted]:
        return [event for event in self.events if isinstance(event, StepCommitted)]


def _name(candidate: Candidate) -> tuple[str, str]:
    return candidate.policy, candidate.text


def _fired(verdict: Verdict | None) -> tuple[str, int] | None:
    return None if verdict is None else (verdict.detector, verdict.position)


def _candidates(
    events: Sequence[Event],
) -> Iterator[tuple[tuple[int, int, str, int], Candidate]]:
    for event in events:
        if isinstance(event, CandidateFinished):
            candidate = event.candidate
            yield (event.draw, event.step, candidate.policy, candidate.index), candidate

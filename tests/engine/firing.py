"""Detectors that fire, or fail, at a given token, that exit, or that know the context."""

from __future__ import annotations

from typing import ClassVar

from kvrescue.detectors.base import Detector, DetectorState, TokenEvent
from kvrescue.types import Candidate, CommittedStep, Context, Question, StopReason, Verdict


class FiresAt(Detector):
    kind: ClassVar[str] = "fires_at"
    position: int
    fail: bool = False

    def start(self) -> DetectorState:
        return _FiresAt(self)


class _FiresAt(DetectorState):
    def __init__(self, options: FiresAt) -> None:
        self.options, self.seen = options, 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self.seen += 1
        if self.seen < self.options.position:
            return None
        if self.options.fail:
            raise ZeroDivisionError("a broken detector")
        return Verdict("fires_at", "test", self.seen, 1.0, 0.5)


class Exits(Detector):
    kind: ClassVar[str] = "exits"

    def start(self) -> DetectorState:
        return _Exits()


class _Exits(DetectorState):
    def update(self, event: TokenEvent) -> Verdict | None:
        raise SystemExit(3)


class Repeats(Detector):
    """Fires where the candidate's text first contains a committed step's."""

    kind: ClassVar[str] = "repeats"

    def start(self) -> DetectorState:
        return _Repeats(())

    def start_in(self, context: Context) -> DetectorState:
        return _Repeats(tuple(step.text for step in context.steps))


class _Repeats(DetectorState):
    def __init__(self, steps: tuple[str, ...]) -> None:
        self.steps, self.text, self.seen = steps, "", 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self.text, self.seen = self.text + event.text, self.seen + 1
        for number, step in enumerate(self.steps):
            if step in self.text:
                return Verdict("repeats", "test", self.seen, number, 0, len(self.text))
        return None


def continuing(*texts: str) -> Context:
    """A context of such committed steps."""
    steps = [
        CommittedStep(number, Candidate("x", 0, text, (1,), StopReason.SEPARATOR), 1.0)
        for number, text in enumerate(texts)
    ]
    return Context(Question("?"), tuple(steps))

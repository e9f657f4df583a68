"""The kit's policies and scorers without models, and a detector that lets them flag candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kvrescue.detectors.base import Detector, DetectorState, TokenEvent
from kvrescue.testing.fakes import (
    WORDS,
    FakePolicy,
    FakeScorer,
    FakeView,
    Habits,
    Log,
    Trouble,
    draw,
    score_of,
)
from kvrescue.types import Candidate, Verdict

__all__ = [
    "WORDS",
    "FakeDetector",
    "FakePolicy",
    "FakeScorer",
    "FakeView",
    "Habits",
    "Log",
    "Trouble",
    "draw",
    "score_of",
    "with_index",
]


class _Silent(DetectorState):
    def update(self, event: TokenEvent) -> Verdict | None:
        return None


class FakeDetector(Detector):
    """Its presence lets a fake policy flag candidates."""

    kind: ClassVar[str] = "fake"

    level: float = 1.0

    def start(self) -> DetectorState:
        return _Silent()


def with_index(candidate: Candidate, index: int) -> Candidate:
    return replace(candidate, index=index)

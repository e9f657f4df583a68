"""Detectors that fire, or fail, at a given token, or that end the program."""

from __future__ import annotations

from typing import ClassVar

from kvrescue.detectors.base import Detector, DetectorState, TokenEvent
from kvrescue.types import Verdict


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

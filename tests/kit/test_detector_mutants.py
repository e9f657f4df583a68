"""Wrong detectors: each is caught by the law it breaks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

import pytest

from kvrescue.detectors import Detector, DetectorState, TokenEvent
from kvrescue.errors import ConfigError
from kvrescue.testing import check_detector
from kvrescue.types import Verdict
from tests.kit.mutants import caught


class Runs(Detector):
    """A correct detector, which the mutants spoil: the same token `limit` times in a row."""

    kind: ClassVar[str] = "runs_of"

    limit: int = 4

    def start(self) -> DetectorState:
        return Running(self)


class Running(DetectorState):
    def __init__(self, detector: Runs) -> None:
        self.detector = detector
        self.position, self.run, self.last = 0, 0, -1

    def update(self, event: TokenEvent) -> Verdict | None:
        self.position += 1
        self.run = self.run + 1 if event.token_id == self.last else 1
        self.last = event.token_id
        return self.verdict() if self.run >= self.detector.limit else None

    def verdict(self) -> Verdict:
        limit = self.detector.limit
        return Verdict(self.detector.kind, f"{self.run} alike", self.position, self.run, limit)


def spoiled(start: Callable[[Runs], DetectorState]) -> Detector:
    """`Runs` with other states."""

    class Spoiled(Runs):
        def start(self) -> DetectorState:
            return start(self)

    return Spoiled()


class LooksAhead(Running):
    """Waits two tokens to be sure, and then says that it knew."""

    def __init__(self, detector: Runs) -> None:
        super().__init__(detector)
        self.waiting: list[Verdict] = []

    def update(self, event: TokenEvent) -> Verdict | None:
        found = super().update(event)
        if found is not None or self.waiting:
            self.waiting.append(found or self.waiting[0])
        return self.waiting[0] if len(self.waiting) > 2 else None


class FromZero(Running):
    def verdict(self) -> Verdict:
        self.position -= 1
        return super().verdict()


class Early(Running):
    """Dates the verdict one token too late."""

    def verdict(self) -> Verdict:
        self.position += 1
        return super().verdict()


class Below(Running):
    """The threshold of another comparison."""

    def verdict(self) -> Verdict:
        limit = float(self.detector.limit)
        value = limit + 1 if self.last % 2 else limit - 1
        return Verdict(self.detector.kind, "alike", self.position, value, limit)


class Unnamed(Running):
    def verdict(self) -> Verdict:
        return Verdict("other", "alike", self.position, 1.0, 1.0)


class NotANumber(Running):
    def verdict(self) -> Verdict:
        return Verdict("runs_of", "alike", self.position, float("nan"), 1.0)


class Truthy(Running):
    def update(self, event: TokenEvent) -> Verdict | None:
        return True if super().update(event) else None  # type: ignore[return-value]


class Chance(Running):
    dice = random.Random(0)

    def update(self, event: TokenEvent) -> Verdict | None:
        self.run += self.dice.random() < 0.3
        return super().update(event)


class Shared(Running):
    """The run is counted in the class; a new candidate starts it anew."""

    seen: ClassVar[dict[str, int]] = {}

    def __init__(self, detector: Runs) -> None:
        super().__init__(detector)
        self.seen["run"] = 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self.run = self.seen["run"]
        found = super().update(event)
        self.seen["run"] = self.run
        return found


class Writes(Running):
    def update(self, event: TokenEvent) -> Verdict | None:
        object.__setattr__(event, "entropy", 0.5)
        return super().update(event)


class Breaks(Running):
    def update(self, event: TokenEvent) -> Verdict | None:
        ord(event.text[0])
        return super().update(event)


class PerToken(Running):
    """Reads the text, but once per token."""

    def __init__(self, detector: Runs) -> None:
        super().__init__(detector)
        self.text = ""

    def update(self, event: TokenEvent) -> Verdict | None:
        self.position += 1
        self.text += event.text
        if len(self.text) < 12 or len(set(self.text[-12:])) > 4:
            return None
        return Verdict("runs_of", "few", self.position, 12.0, 12.0, len(self.text))


@pytest.mark.parametrize(
    ("state", "law"),
    [
        (LooksAhead, "causal"),
        (FromZero, "position"),
        (Early, "position"),
        (Below, "threshold-side"),
        (Unnamed, "verdict"),
        (NotANumber, "verdict"),
        (Truthy, "verdict"),
        (Chance, "deterministic"),
        (Shared, "independent-states"),
        (Writes, "read-only"),
        (Breaks, "runs"),
        (PerToken, "token-splits"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_state_that_is_wrong(state: Callable[[Runs], DetectorState], law: str) -> None:
    caught(lambda: check_detector(spoiled(state)), law)


def test_a_state_that_is_never_renewed() -> None:
    states: dict[int, Running] = {}
    keep: list[Runs] = []

    def start(detector: Runs) -> DetectorState:
        keep.append(detector)
        state = states.setdefault(id(detector), Running(detector))
        state.position = 0
        return state

    caught(lambda: check_detector(spoiled(start)), "fresh-start")


def test_one_that_never_fires() -> None:
    class Silent(Running):
        def update(self, event: TokenEvent) -> Verdict | None:
            return None

    caught(lambda: check_detector(spoiled(Silent)), "fires")


def test_tokens_that_make_it_fire_can_be_given() -> None:
    class Needle(Running):
        def update(self, event: TokenEvent) -> Verdict | None:
            self.position += 1
            found = event.text == "needle"
            return Verdict("runs_of", "found", self.position, 1.0, 1.0) if found else None

    caught(lambda: check_detector(spoiled(Needle)), "fires")
    events = [TokenEvent(1, "hay", 0.0), TokenEvent(2, "needle", 0.0)]
    check_detector(spoiled(Needle), fires_on=events)
    caught(lambda: check_detector(spoiled(Needle), fires_on=events[:1]), "fires")


def test_a_right_one_passes() -> None:
    check_detector(Runs())


@pytest.mark.parametrize("wrong", [Runs, "gzip", None])
def test_wrong_usage_is_a_configuration_error(wrong: object) -> None:
    with pytest.raises(ConfigError, match="detector = "):
        check_detector(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="fires_on"):
        check_detector(Runs(), fires_on=["a"])  # type: ignore[list-item]

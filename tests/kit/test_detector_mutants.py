"""Wrong detectors: each is caught by the law it breaks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from kvrescue.detectors import Detector, DetectorState, TokenEvent
from kvrescue.errors import ConfigError
from kvrescue.testing import check_detector
from kvrescue.testing.streams import Shown, tokens_from
from kvrescue.types import Context, Verdict
from tests.engine.firing import continuing
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
    events = [TokenEvent(1, "hay", 0.0), "needle"]
    check_detector(spoiled(Needle), fires_on=events, examples=20)
    found = caught(lambda: check_detector(spoiled(Needle), fires_on=events[:1]), "fires")
    assert "'hay' (id 1, 0 nats)" in found.seen


fired: list[str] = []


class Saturates(Running):
    """Once anything has fired, everything does: the module remembers."""

    def update(self, event: TokenEvent) -> Verdict | None:
        found = super().update(event)
        fired.extend(["again"] if found else [])
        return found or (self.verdict() if fired else None)


class Counts(Running):
    """Fires at the hundredth token of all candidates, and ever after."""

    read: ClassVar[list[int]] = []

    def update(self, event: TokenEvent) -> Verdict | None:
        self.read.append(event.token_id)
        found = super().update(event)
        return found or (self.verdict() if len(self.read) > 100 else None)


class Awaits(Running):
    async def update(self, event: TokenEvent) -> Verdict | None:  # type: ignore[override]
        return None


one_state: list[Running] = []


def the_same(detector: Runs) -> DetectorState:
    """One state for all candidates."""
    one_state[:] = one_state or [Running(detector)]
    return one_state[0]


@pytest.mark.parametrize(
    ("start", "law"),
    [
        (Saturates, "fresh-start"),
        (Counts, "fresh-start"),
        (the_same, "fresh-start"),
        (Awaits, "runs"),
        (lambda detector: None, "runs"),
    ],
)
def test_a_start_that_is_wrong(start: Callable[[Runs], DetectorState], law: str) -> None:
    found = caught(lambda: check_detector(spoiled(start)), law)
    assert "object at 0x" not in found.expected


class Repeats(Runs):
    """A correct detector of the context: fires where the candidate is a committed step."""

    def start(self) -> DetectorState:
        return Repeating(self, ())

    def start_in(self, context: Context) -> DetectorState:
        return Repeating(self, [step.text for step in context.steps])


class Repeating(Running):
    def __init__(self, detector: Runs, steps: Sequence[str]) -> None:
        super().__init__(detector)
        self.steps, self.text = steps, ""

    def update(self, event: TokenEvent) -> Verdict | None:
        self.position += 1
        self.text += event.text
        if self.text not in self.steps:
            return None
        return Verdict("runs_of", "said before", self.position, 1.0, 1.0)


class NeedsAStep(Repeats):
    def start_in(self, context: Context) -> DetectorState:
        return Repeating(self, [context.steps[0].text])


class ByQuestion(Repeats):
    """Candidates of one question share a state."""

    kept: ClassVar[dict[str, DetectorState]] = {}

    def start_in(self, context: Context) -> DetectorState:
        return self.kept.setdefault(context.question.id, super().start_in(context))


class AllContexts(Repeats):
    """Steps that were committed anywhere count, in whatever trajectory."""

    steps: ClassVar[list[str]] = []

    def start_in(self, context: Context) -> DetectorState:
        self.steps.extend(step.text for step in context.steps)
        return Repeating(self, self.steps)


class TheNewest(Repeats):
    """Candidates compare themselves with the steps of whoever was started last."""

    steps: ClassVar[list[str]] = []

    def start_in(self, context: Context) -> DetectorState:
        self.steps[:] = [step.text for step in context.steps]
        return Repeating(self, self.steps)


STEPS = ("So 7.\n\n", "Check.\n\n")


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        (NeedsAStep, "runs"),
        (ByQuestion, "fresh-start"),
        (AllContexts, "fresh-start"),
        (TheNewest, "independent-states"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_start_in_that_is_wrong(mutant: type[Runs], law: str) -> None:
    caught(lambda: check_detector(mutant(), fires_on=STEPS[0], context=STEPS), law)


def test_a_right_one_passes() -> None:
    check_detector(Runs())


def test_a_right_one_of_the_context_passes() -> None:
    check_detector(Repeats(), fires_on=STEPS[0], context=STEPS, examples=40)
    check_detector(Repeats(), fires_on=[STEPS[1]], context=continuing(*STEPS), examples=10)
    caught(lambda: check_detector(Repeats(), fires_on=STEPS[0], context=STEPS[1:]), "fires")


def test_the_tokens_that_are_shown_are_those_that_break_it() -> None:
    found = caught(lambda: check_detector(spoiled(Breaks)), "runs")
    assert "'' (id " in str(found.case)


def test_tokens_that_were_given_are_made_fewer() -> None:
    class Late(Running):
        """Fires at a nine, with a value that is no number once a five was read."""

        five = False

        def update(self, event: TokenEvent) -> Verdict | None:
            self.position += 1
            self.five |= event.text == "5"
            value = float("nan") if self.five else 1.0
            at = self.position
            return Verdict("runs_of", "nine", at, value, 1.0) if event.text == "9" else None

    text = "a long text " * 9 + "5 and more 9 and so on"
    found = caught(lambda: check_detector(spoiled(Late), fires_on=text), "verdict")
    assert isinstance(found.case, Shown)
    assert "".join(event.text for event in found.case.events) == "59"


def test_of_many_tokens_those_around_the_fault_are_shown() -> None:
    events = tokens_from([f"w{n}" for n in range(40)], "")
    shown = str(Shown(events, 30))
    assert shown.startswith("tokens 23 to 34 of 40: 'w22'")
    assert "'w29'" in shown
    assert "'w34'" not in shown


@pytest.mark.parametrize("wrong", [Runs, "gzip", None])
def test_wrong_usage_is_a_configuration_error(wrong: object) -> None:
    with pytest.raises(ConfigError, match="detector = "):
        check_detector(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="fires_on"):
        check_detector(Runs(), fires_on=["a", 3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="context = "):
        check_detector(Runs(), context="a")

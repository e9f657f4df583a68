"""What must hold where a detector reads a candidate; the laws stand in `detector_laws`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kvrescue.detectors.base import Detector, DetectorState, TokenEvent
from kvrescue.testing.detector_laws import (
    CAUSAL,
    DETERMINISTIC,
    FRESH,
    INDEPENDENT,
    POSITION,
    READ_ONLY,
    RUNS,
    SIDE,
    SPLITS,
    VERDICT,
)
from kvrescue.testing.laws import Law, broken
from kvrescue.testing.streams import Shown, Stream
from kvrescue.types import Context, Verdict

__all__ = ["Case", "Reading", "Record"]

Events = tuple[TokenEvent, ...]
Record = dict[Events, Any]
"""What the first reading of each stream gave."""


@dataclass(frozen=True)
class Case:
    """A candidate, another one, how the text is split anew, and where the other one is read."""

    stream: Stream
    other: Stream
    cuts: tuple[int, ...] = (1,)
    there: int = 0

    def __str__(self) -> str:
        return str(self.stream)


class Reading:
    """The laws on one case, in the order in which they build on one another."""

    def __init__(self, detector: Detector, who: str, home: Context, others: Sequence[Context]):
        self.detector, self.who, self.home, self.others = detector, who, home, others
        self.pristine = copy.deepcopy(detector)
        self.side = 0.0
        """Sign of value - threshold; 0 while no verdict has told."""
        self.of_text = False
        self.firsts: Record = {}

    def learn(self, events: Events) -> None:
        """Take what all verdicts have in common from the tokens that make it fire."""
        first = self.firsts[events]
        if isinstance(first, Verdict):
            self.side = _sign(first)
            self.of_text = first.char_position is not None

    def __call__(self, case: Case) -> None:
        __tracebackhide__ = True
        events, other = case.stream.events, case.other.events
        there = self.others[case.there % len(self.others)]
        verdict = self.read(events)
        self.repeated(events, other, there, verdict)
        self.together(events, other, there, verdict)
        self.future(events, other, verdict)
        if self.of_text:
            self.split(events, case.cuts, verdict)

    # -- reading -------------------------------------------------------------------------------

    def fail(
        self,
        law: Law,
        events: Sequence[TokenEvent],
        seen: str,
        expected: str,
        at: int = 0,
        other: Sequence[TokenEvent] | None = None,
        context: Context | None = None,
    ) -> NoReturn:
        __tracebackhide__ = True
        beside = None if other is None else tuple(other)
        case = Shown(tuple(events), at, _where(context or self.home), beside)
        broken(law, self.who, seen, expected, case)

    def start(
        self, detector: Detector, context: Context | None, events: Sequence[TokenEvent]
    ) -> DetectorState:
        """The state of a candidate; of `start()` where there is no context."""
        __tracebackhide__ = True
        called = (
            "start()" if context is None else f"start_in(context of {len(context.steps)} steps)"
        )
        try:
            state: Any = detector.start() if context is None else detector.start_in(context)
        except Exception as error:
            self._failed(error, called, events, 0, context)
        if not hasattr(state, "update"):
            seen = f"{called} returned {_named(state)}"
            self.fail(RUNS, events, seen, "a DetectorState", context=context)
        found: DetectorState = state
        return found

    def update(
        self, state: DetectorState, events: Sequence[TokenEvent], at: int, context: Context | None
    ) -> Any:
        """What the state says to token number `at`, from 1."""
        __tracebackhide__ = True
        try:
            verdict: Any = state.update(events[at - 1])
        except Exception as error:
            self._failed(error, f"token {at}", events, at, context)
        if inspect.iscoroutine(verdict):
            verdict.close()
            seen = "`update` returned a coroutine"
            self.fail(RUNS, events, seen, "a Verdict, or None: make it `def update`", at)
        return verdict

    def _failed(
        self,
        error: Exception,
        doing: str,
        events: Sequence[TokenEvent],
        at: int,
        context: Context | None,
    ) -> NoReturn:
        __tracebackhide__ = True
        try:
            seen = f"{type(error).__name__}: {error}, at {doing}"
            self.fail(RUNS, events, seen, "no error", at, context=context)
        except AssertionError as told:
            raise told from error

    def raw(
        self,
        detector: Detector,
        events: Sequence[TokenEvent],
        context: Context | None = None,
        *,
        plain: bool = False,
    ) -> tuple[Any, int]:
        """What the detector returns in a context (None: at home; `plain`: by `start()`), and
        after how many tokens."""
        __tracebackhide__ = True
        context = None if plain else context or self.home
        state = self.start(detector, context, events)
        for count in range(1, len(events) + 1):
            verdict = self.update(state, events, count, context)
            if verdict is not None:
                return verdict, count
        return None, len(events)

    def read(self, events: Events) -> Verdict | None:
        """The verdict on fresh tokens, which is that of the first reading, and is checked."""
        __tracebackhide__ = True
        shown = [dataclasses.replace(event) for event in events]
        verdict, count = self.raw(self.detector, shown)
        if shown != list(events):
            place = next(i for i, e in enumerate(events) if shown[i] != e)
            seen = f"token {place + 1} is now {shown[place]}"
            self.fail(READ_ONLY, events, seen, "as it was", place + 1)
        if self.detector != self.pristine:
            self.fail(READ_ONLY, events, f"it is now {self.detector!r}", f"{self.pristine!r}")
        first = self.firsts.setdefault(events, verdict)
        again, then = (verdict, count) if first is not verdict else self.raw(self.detector, events)
        if not _same(first, again):
            self.changed(events, first, again, then, "when it was read again")
        if verdict is not None:
            self.well_formed(verdict, events, count)
        found: Verdict | None = verdict
        return found

    def changed(
        self,
        events: Events,
        first: Any,
        later: Any,
        count: int,
        how: str,
        other: Sequence[TokenEvent] | None = None,
    ) -> NoReturn:
        """A later reading differs from the first: is it memory, or chance?"""
        __tracebackhide__ = True
        remembers = isinstance(later, Verdict) and later.position != count
        if not remembers:
            self.anew(events, 20)
        self.fail(
            FRESH, events, f"{_short(first)} at first; {_short(later)} {how}", "the same verdict",
            count, other,
        )  # fmt: skip

    def anew(self, events: Events, times: int) -> Any:
        """The verdict of copies that have read nothing; the same every time."""
        __tracebackhide__ = True
        first = self.raw(copy.deepcopy(self.pristine), events)[0]
        for _ in range(times - 1):
            other = self.raw(copy.deepcopy(self.pristine), events)[0]
            if not _same(other, first):
                seen = f"{_short(first)}, then {_short(other)}"
                self.fail(DETERMINISTIC, events, seen, "the same twice")
        return first

    def remembered(self, case: Case) -> None:
        """All that was read is read again, the last first."""
        __tracebackhide__ = True
        del case
        for events, first in reversed(list(self.firsts.items())[:60]):
            later, count = self.raw(self.detector, events)
            if not _same(first, later):
                self.changed(events, first, later, count, "after all others were read")

    def well_formed(self, verdict: Any, events: Events, count: int) -> None:
        __tracebackhide__ = True

        def wrong(seen: str, expected: str, law: Law = VERDICT) -> None:
            __tracebackhide__ = True
            self.fail(law, events, seen, expected, count)

        if not isinstance(verdict, Verdict):
            wrong(f"update returned {_named(verdict)}", "a Verdict, or None")
        if verdict.detector != self.detector.kind:
            wrong(f"detector = {verdict.detector!r}", f"{self.detector.kind!r}")
        if not isinstance(verdict.reason, str) or not verdict.reason.strip():
            wrong(f"reason = {verdict.reason!r}", "a sentence")
        for name in ("value", "threshold"):
            number = getattr(verdict, name)
            if not isinstance(number, int | float) or not math.isfinite(number):
                wrong(f"{name} = {number!r}", "a finite number")
        position = verdict.position
        if position != count:
            # One too few may be counting from 0; more than that has waited for later tokens.
            law = CAUSAL if isinstance(position, int) and 0 < position < count - 1 else POSITION
            wrong(f"position {position!r}, returned after {count} tokens", f"{count}", law)
        chars = sum(len(event.text) for event in events[:count])
        place = verdict.char_position
        if (place is not None) != self.of_text:
            told = "has one" if self.of_text else "has none"
            seen = f"char_position = {place!r}, while another verdict {told}"
            wrong(seen, "all verdicts with it, or none")
        if place is not None and not 0 < place <= chars:
            wrong(f"char_position = {place} of {chars} characters", f"1 to {chars}")
        side = _sign(verdict)
        if side and self.side and side != self.side:
            where = "above" if side > 0 else "below"
            wrong(
                f"value {verdict.value:g} lies {where} the threshold {verdict.threshold:g}; on "
                "another stream it lay on the other side",
                "one side",
                SIDE,
            )

    # -- several readings ----------------------------------------------------------------------

    def repeated(
        self, events: Events, other: Events, there: Context, verdict: Verdict | None
    ) -> None:
        __tracebackhide__ = True
        one = self.anew(events, 2)
        if not _same(one, verdict):
            self.changed(events, one, verdict, len(events), "after other candidates were read")
        self.raw(self.detector, other, there)  # a candidate in between
        again, count = self.raw(self.detector, events)
        if not _same(again, verdict):
            how = "after another candidate was read"
            self.changed(events, verdict, again, count, how, other)

    def together(
        self, events: Events, other: Events, there: Context, verdict: Verdict | None
    ) -> None:
        """Two candidates token by token, the other one in another context."""
        __tracebackhide__ = True
        alone = [verdict, self.raw(self.detector, other, there)[0]]
        streams, contexts = (events, other), (self.home, there)
        found: list[Verdict | None] = [None, None]
        states = [
            self.start(self.detector, contexts[row], streams[row]) for row in range(2)
        ]  # both, before either reads
        for at in range(1, max(map(len, streams)) + 1):
            for row, stream in enumerate(streams):
                if at <= len(stream) and found[row] is None:
                    found[row] = self.update(states[row], stream, at, contexts[row])
        for row in range(2):
            if not _same(found[row], alone[row]):
                seen = f"{_short(alone[row])} alone; {_short(found[row])} beside the other"
                self.fail(
                    INDEPENDENT,
                    streams[row],
                    seen,
                    "the same verdict",
                    other=streams[1 - row],
                    context=contexts[row],
                )

    def future(self, events: Events, other: Events, verdict: Verdict | None) -> None:
        __tracebackhide__ = True
        last = len(events) if verdict is None else verdict.position
        later = self.raw(self.detector, [*events[:last], *other])[0]
        if verdict is None:
            if later is not None and later.position <= last:
                self._same_as_ever(events, verdict)
                seen = f"with more tokens behind: {_short(later)}"
                self.fail(CAUSAL, events, seen, "no verdict", other=other)
            return
        if later != verdict:
            self._same_as_ever(events, verdict)
            seen = f"{_short(verdict)}; with other tokens behind: {_short(later)}"
            self.fail(CAUSAL, events, seen, "the same verdict", last, other)
        early = self.raw(self.detector, events[: last - 1])[0]
        if early is not None:
            self._same_as_ever(events, verdict)
            seen = f"{_short(verdict)}; where the candidate ends before: {_short(early)}"
            self.fail(CAUSAL, events, seen, "no verdict", last)

    def _same_as_ever(self, events: Events, verdict: Verdict | None) -> None:
        """What looks like foresight may be memory: the same tokens are then read otherwise, too."""
        __tracebackhide__ = True
        later = self.raw(self.detector, events)[0]
        if later != verdict:
            seen = f"{_short(verdict)} at first; {_short(later)} when read again"
            self.fail(FRESH, events, seen, "the same verdict")

    def split(self, events: Events, cuts: Sequence[int], verdict: Verdict | None) -> None:
        __tracebackhide__ = True
        text = "".join(event.text for event in events)
        pieces, start, turn = [], 0, 0
        while start < len(text):
            width = cuts[turn % len(cuts)]
            pieces.append(TokenEvent(turn, text[start : start + width], 1.0))
            start, turn = start + width, turn + 1
        for tokens in (pieces, [TokenEvent(0, text, 1.0)] if text else []):
            found = self.raw(self.detector, tokens)[0]
            if _of_text(found) != _of_text(verdict):
                seen = (
                    f"{_short(verdict)} in {len(events)} tokens; {_short(found)} in {len(tokens)} "
                    f"tokens of {len(tokens[0].text) if len(tokens) == 1 else list(cuts)} "
                    "characters"
                )
                at = verdict.position if verdict is not None else 0
                self.fail(SPLITS, events, seen, "the same character and value", at)


def _same(one: Any, other: Any) -> bool:
    """Equal, also where a value is NaN; what is no verdict is told elsewhere."""
    if not isinstance(one, Verdict) or not isinstance(other, Verdict):
        return type(one) is type(other)
    return one == other or repr(one) == repr(other)


def _sign(verdict: Verdict) -> float:
    try:
        gap = verdict.value - verdict.threshold
    except TypeError:  # told by the law `verdict`
        return 0.0
    return math.copysign(1.0, gap) if gap else 0.0


def _of_text(verdict: Any) -> tuple[int | None, float] | None:
    return (verdict.char_position, verdict.value) if isinstance(verdict, Verdict) else None


def _where(context: Context) -> str:
    steps = [step.text for step in context.steps]
    return f"after the steps {steps}" if steps else ""


def _named(value: Any) -> str:
    """A value as an author recognises it."""
    kind = type(value).__name__
    return repr(value) if value is None or isinstance(value, bool) else f"a {kind}, {value!r}"


def _short(verdict: Any) -> str:
    if verdict is None:
        return "no verdict"
    if not isinstance(verdict, Verdict):
        return repr(verdict)
    chars = "" if verdict.char_position is None else f", character {verdict.char_position}"
    return f"fires at token {verdict.position}{chars} with {verdict.value!r}"

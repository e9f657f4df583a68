"""check_detector: the laws of a detector (design, law 8: online and causal)."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from kvrescue.detectors.base import Detector, TokenEvent
from kvrescue.errors import ConfigError
from kvrescue.testing.components import OPTIONS, check_options, name_of, require
from kvrescue.testing.laws import Law, Laws, broken, checked_examples, search
from kvrescue.types import Verdict

__all__ = ["DETECTOR_LAWS", "Stream", "check_detector"]

RUNS: Final = Law(
    "runs",
    "Every token is read without an error.",
    "One odd token ends the run with a PolicyError.",
    "Empty text, text of several characters, emoji and a repeated token id all occur.",
)
FIRES: Final = Law(
    "fires",
    "Some stream of tokens makes the detector fire.",
    "Nothing at all is known of a detector that never fires, and it never aborts anything.",
    "Check a configuration with small windows and low thresholds, or give `fires_on=`, a list of "
    "TokenEvent that must make it fire.",
)
VERDICT: Final = Law(
    "verdict",
    "A verdict names its detector (`kind`) and a reason, with a finite value and threshold and, "
    "where it has one, a char_position within the characters read.",
    "Reports and traces count the verdict for no detector, or show numbers that mean nothing.",
    "Return Verdict(detector=self.kind, reason=..., position=..., value=..., threshold=...).",
)
SIDE: Final = Law(
    "threshold-side",
    "All verdicts lie on one side of their threshold: always at or above it, or always at or "
    "below.",
    "Thresholds are calibrated on recorded values: a verdict on the other side says that value "
    "and threshold are not what was compared.",
    "Report the value that was compared, and the threshold it was compared with.",
)
POSITION: Final = Law(
    "position",
    "A verdict's position is the number of tokens read when it was returned (1 = the first).",
    "The aborted candidate is cut at the wrong token, and its entropies and text no longer agree.",
    "Count every call of `update`, the first one as 1, and report the count.",
)
CAUSAL: Final = Law(
    "causal",
    "A verdict at position e follows from the first e tokens alone.",
    "Online, the verdict comes later than it claims, or depends on how far a candidate happened "
    "to be generated: offline calibration then promises what a run cannot keep.",
    "Fire at the token that completes the evidence, and report that token's position.",
)
DETERMINISTIC: Final = Law(
    "deterministic",
    "The same tokens give the same verdict.",
    "A seed no longer says which candidates survive, and a resumed run differs.",
    "Use no random numbers and no clock, and keep no memory in the class or the module.",
)
FRESH: Final = Law(
    "fresh-start",
    "`start()` knows nothing of candidates that were read before.",
    "A candidate is aborted for what an earlier one wrote.",
    "Create everything that changes in the state's `__init__`, nothing of it in the detector.",
)
INDEPENDENT: Final = Law(
    "independent-states",
    "States of candidates that are read side by side do not see each other.",
    "Candidates are generated in parallel: one is aborted for what its sibling wrote, and results "
    "change with N.",
    "Keep counters and buffers in the state (`self` of the DetectorState), not in the detector, "
    "the class, the module or a mutable default argument.",
)
SPLITS: Final = Law(
    "token-splits",
    "A detector of text (one whose verdicts have a char_position) fires at the same character, "
    "with the same value, however the text is split into tokens.",
    "Another tokenizer, or a server that streams several characters at once, moves the verdict: "
    "thresholds do not carry over.",
    "Collect the characters, and evaluate at fixed character positions instead of once per token.",
)
READ_ONLY: Final = Law(
    "read-only",
    "Reading changes neither the tokens nor the detector.",
    "Other detectors of the same candidate read something else than was generated.",
    "Keep what you need in the state.",
)

DETECTOR_LAWS: Final[Laws] = (
    OPTIONS,
    RUNS,
    FIRES,
    VERDICT,
    SIDE,
    POSITION,
    CAUSAL,
    DETERMINISTIC,
    FRESH,
    INDEPENDENT,
    SPLITS,
    READ_ONLY,
)

_WORDS = ("a", "ab", " x", "\n", "xyz", "", "é", "数", "\N{GRINNING FACE}b", "0 & 0")


@dataclass(frozen=True)
class Stream:
    """Tokens of a candidate: `head`, `block` repeated `count` times, `tail`."""

    head: tuple[TokenEvent, ...] = ()
    block: tuple[TokenEvent, ...] = ()
    count: int = 0
    tail: tuple[TokenEvent, ...] = ()

    @property
    def events(self) -> tuple[TokenEvent, ...]:
        return self.head + self.block * self.count + self.tail

    def __str__(self) -> str:
        parts = [_told(self.head), "", _told(self.tail)]
        if self.block and self.count:
            parts[1] = f"{self.count} x [{_told(self.block)}]"
        return ", then ".join(part for part in parts if part) or "no tokens"


def _told(events: Sequence[TokenEvent]) -> str:
    shown = [f"{e.text!r} (id {e.token_id}, {e.entropy:g} nats)" for e in events[:12]]
    rest = len(events) - len(shown)
    return ", ".join(shown) + (f", ... {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class _Case:
    stream: Stream
    other: Stream
    cuts: tuple[int, ...] = ()

    def __str__(self) -> str:
        return str(self.stream)


def check_detector(
    detector: Detector,
    *,
    fires_on: Sequence[TokenEvent] | None = None,
    examples: int = 100,
) -> None:
    """Search for tokens on which a detector breaks one of `DETECTOR_LAWS`.

    Args:
        detector: configured; small windows and low thresholds make verdicts common.
        fires_on: tokens that make it fire, where no loop, no noise and no high entropy does.
        examples: streams to try.

    Raises:
        LawBroken: it does.
        ConfigError: not a detector, or not a list of tokens.
    """
    __tracebackhide__ = True
    require(detector, Detector, "detector")
    examples = checked_examples(examples)
    if fires_on is not None and not (
        isinstance(fires_on, list | tuple) and all(isinstance(e, TokenEvent) for e in fires_on)
    ):
        raise ConfigError("fires_on: expected a list of kvrescue.TokenEvent")
    check_options("detector", detector)
    who = name_of("detector", detector)
    known = _known_stream(detector, who, fires_on)
    check = _Check(detector, who, known)
    for stream in (known, Stream()):
        search(st.just(_Case(stream, Stream())), check, examples=1, component=who, runs=RUNS)
    search(_cases(known), check, examples=examples, component=who, runs=RUNS)


def _known_stream(detector: Detector, who: str, fires_on: Sequence[TokenEvent] | None) -> Stream:
    """Tokens that make the detector fire, and a few that follow."""
    __tracebackhide__ = True
    streams = _LONG if fires_on is None else (Stream(head=tuple(fires_on)),)

    def fires(stream: Stream) -> int:
        state = detector.start()
        for n, event in enumerate(stream.events, 1):
            if state.update(event) is not None:
                return n
        return 0

    tried: list[Stream] = []

    def find(stream: Stream) -> None:
        if not tried and fires(stream):
            tried.append(stream)

    for stream in streams:
        search(st.just(stream), find, examples=1, component=who, runs=RUNS)
    if not tried:
        given = "`fires_on`" if fires_on is not None else f"{len(streams)} streams of 1,500 tokens"
        broken(FIRES, who, f"no verdict on {given}", "one")
    found = tried[0]
    if not found.block:
        return found
    count = -(-(fires(found) - len(found.head)) // len(found.block))
    return dataclasses.replace(found, count=max(1, count), tail=found.block[:3])


def _long_streams() -> tuple[Stream, ...]:
    loops = (("the ",), ("\n",), ("so ", "we ", "have ", "1"), (" x = 3;",), ("é数 ",))
    made = [
        Stream(
            block=tuple(TokenEvent(n + 1, text, entropy) for n, text in enumerate(texts)),
            count=1500 // len(texts),
        )
        for entropy in (11.0, 0.0)
        for texts in loops
    ]
    varied = tuple(
        TokenEvent(n * 7919 % 50021, f"w{n * 7919 % 50021:x} ", 11.0 * (n % 2)) for n in range(1500)
    )
    return (*made, Stream(head=varied))


_LONG: Final = _long_streams()


def _cases(known: Stream) -> st.SearchStrategy[_Case]:
    events = st.builds(
        TokenEvent,
        token_id=st.integers(0, 3),
        text=st.sampled_from(_WORDS),
        entropy=st.floats(0.0, 11.9).map(lambda x: round(x, 3)),
    )
    few = st.lists(events, max_size=6).map(tuple)
    free = st.builds(
        Stream,
        head=few,
        block=st.lists(events, min_size=1, max_size=4).map(tuple),
        count=st.integers(0, 12),
        tail=few,
    )
    around = st.builds(
        lambda head, tail: Stream(head + known.head, known.block, known.count, known.tail + tail),
        few,
        few,
    )
    streams = st.one_of(free, around)
    cuts = st.lists(st.integers(1, 6), min_size=1, max_size=6).map(tuple)
    return st.builds(_Case, streams, streams, cuts)


class _Check:
    """The laws on one case, in the order in which they build on one another."""

    def __init__(self, detector: Detector, who: str, known: Stream) -> None:
        self.detector, self.who = detector, who
        self.pristine = copy.deepcopy(detector)
        self.side = 0.0
        """Sign of value - threshold; 0 while no verdict has told."""
        self.of_text = False
        first = self.raw(detector, known.events)[0]
        if isinstance(first, Verdict):
            self.side = _sign(first)
            self.of_text = first.char_position is not None

    def __call__(self, case: _Case) -> None:
        __tracebackhide__ = True
        events, other = case.stream.events, case.other.events
        verdict = self.read(events)
        self.repeated(events, other, verdict)
        self.together(events, other, verdict)
        self.future(events, other, verdict)
        if self.of_text:
            self.split(events, case.cuts or (1,), verdict)

    @staticmethod
    def raw(detector: Detector, events: Sequence[TokenEvent]) -> tuple[Any, int]:
        """What the detector returns, and after how many tokens."""
        state = detector.start()
        for count, event in enumerate(events, 1):
            verdict = state.update(event)
            if verdict is not None:
                return verdict, count
        return None, len(events)

    def read(self, events: Sequence[TokenEvent]) -> Verdict | None:
        """The verdict on fresh tokens, which is checked."""
        __tracebackhide__ = True
        shown = [dataclasses.replace(event) for event in events]
        verdict, count = self.raw(self.detector, shown)
        if shown != list(events):
            place = next(i for i, e in enumerate(events) if shown[i] != e)
            broken(READ_ONLY, self.who, f"token {place + 1} is now {shown[place]}", "as it was")
        if self.detector != self.pristine:
            broken(READ_ONLY, self.who, f"it is now {self.detector!r}", f"{self.pristine!r}")
        if verdict is not None:
            self.well_formed(verdict, events, count)
        return verdict

    def well_formed(self, verdict: Any, events: Sequence[TokenEvent], count: int) -> None:
        __tracebackhide__ = True
        if not isinstance(verdict, Verdict):
            broken(VERDICT, self.who, f"update returned {verdict!r}", "a Verdict, or None")
        if verdict.detector != self.detector.kind:
            broken(VERDICT, self.who, f"detector = {verdict.detector!r}", f"{self.detector.kind!r}")
        if not isinstance(verdict.reason, str) or not verdict.reason.strip():
            broken(VERDICT, self.who, f"reason = {verdict.reason!r}", "a sentence")
        for name in ("value", "threshold"):
            number = getattr(verdict, name)
            if not isinstance(number, int | float) or not math.isfinite(number):
                broken(VERDICT, self.who, f"{name} = {number!r}", "a finite number")
        position = verdict.position
        if position != count:
            # One too few may be counting from 0; more than that has waited for later tokens.
            law = CAUSAL if isinstance(position, int) and 0 < position < count - 1 else POSITION
            broken(
                law, self.who, f"position {position!r}, returned after {count} tokens", f"{count}"
            )
        chars = sum(len(event.text) for event in events[:count])
        place = verdict.char_position
        if (place is not None) != self.of_text:
            broken(
                VERDICT,
                self.who,
                f"char_position = {place!r}, while another verdict "
                + ("has one" if self.of_text else "has none"),
                "all verdicts with it, or none",
            )
        if place is not None and not 0 < place <= chars:
            broken(
                VERDICT, self.who, f"char_position = {place} of {chars} characters", f"1 to {chars}"
            )
        side = _sign(verdict)
        if side and self.side and side != self.side:
            where = "above" if side > 0 else "below"
            broken(
                SIDE,
                self.who,
                f"value {verdict.value:g} lies {where} the threshold {verdict.threshold:g}; on "
                "another stream it lay on the other side",
                "one side",
            )

    def repeated(
        self, events: Sequence[TokenEvent], other: Sequence[TokenEvent], verdict: Verdict | None
    ) -> None:
        __tracebackhide__ = True
        one = self.anew(events, 2)
        self.raw(self.detector, other)  # a candidate in between
        again = self.raw(self.detector, events)[0]
        if again != verdict or verdict != one:
            self.anew(events, 20)  # or is it chance?
            later = again if again != verdict else verdict
            first = verdict if again != verdict else one
            broken(
                FRESH,
                self.who,
                f"{_short(first)} at first; {_short(later)} after other candidates were read",
                "the same verdict",
            )

    def anew(self, events: Sequence[TokenEvent], times: int) -> Verdict | None:
        """The verdict of copies that have read nothing; the same every time."""
        __tracebackhide__ = True
        first: Verdict | None = self.raw(copy.deepcopy(self.pristine), events)[0]
        for _ in range(times - 1):
            other = self.raw(copy.deepcopy(self.pristine), events)[0]
            if other != first:
                seen = f"{_short(first)}, then {_short(other)}"
                broken(DETERMINISTIC, self.who, seen, "the same twice")
        return first

    def together(
        self, events: Sequence[TokenEvent], other: Sequence[TokenEvent], verdict: Verdict | None
    ) -> None:
        __tracebackhide__ = True
        alone = [verdict, self.raw(self.detector, other)[0]]
        streams, found = (events, other), [None, None]
        states = [self.detector.start(), self.detector.start()]
        for n in range(max(map(len, streams))):
            for row, stream in enumerate(streams):
                if n < len(stream) and found[row] is None:
                    found[row] = states[row].update(stream[n])  # type: ignore[call-overload]
        for row in range(2):
            if found[row] != alone[row]:
                broken(
                    INDEPENDENT,
                    self.who,
                    f"{_short(alone[row])} alone; {_short(found[row])} beside a candidate of "
                    f"{len(streams[1 - row])} tokens",
                    "the same verdict",
                )

    def future(
        self, events: Sequence[TokenEvent], other: Sequence[TokenEvent], verdict: Verdict | None
    ) -> None:
        __tracebackhide__ = True
        last = len(events) if verdict is None else verdict.position
        later = self.raw(self.detector, [*events[:last], *other])[0]
        if verdict is None:
            if later is not None and later.position <= last:
                broken(CAUSAL, self.who, f"with more tokens behind: {_short(later)}", "no verdict")
            return
        if later != verdict:
            broken(
                CAUSAL,
                self.who,
                f"{_short(verdict)}; with other tokens behind: {_short(later)}",
                "the same verdict",
            )
        early = self.raw(self.detector, events[: last - 1])[0]
        if early is not None:
            broken(
                CAUSAL,
                self.who,
                f"{_short(verdict)}; where the candidate ends before: {_short(early)}",
                "no verdict",
            )

    def split(
        self, events: Sequence[TokenEvent], cuts: Sequence[int], verdict: Verdict | None
    ) -> None:
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
                broken(
                    SPLITS,
                    self.who,
                    f"{_short(verdict)} in {len(events)} tokens; {_short(found)} in {len(tokens)} "
                    f"tokens of {len(tokens[0].text) if len(tokens) == 1 else list(cuts)} "
                    "characters",
                    "the same character and value",
                )


def _sign(verdict: Verdict) -> float:
    gap = verdict.value - verdict.threshold
    return math.copysign(1.0, gap) if gap else 0.0


def _of_text(verdict: Verdict | None) -> tuple[int | None, float] | None:
    return verdict and (verdict.char_position, verdict.value)


def _short(verdict: Verdict | None) -> str:
    if verdict is None:
        return "no verdict"
    if not isinstance(verdict, Verdict):
        return repr(verdict)
    chars = "" if verdict.char_position is None else f", character {verdict.char_position}"
    return f"fires at token {verdict.position}{chars} with {verdict.value:.6g}"

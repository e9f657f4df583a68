"""check_detector: the laws of a detector (design, law 8: online and causal)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hypothesis import strategies as st

from kvrescue.detectors.base import Detector, TokenEvent
from kvrescue.errors import ConfigError
from kvrescue.testing.components import check_options, name_of, require
from kvrescue.testing.detector_laws import DETECTOR_LAWS, FIRES, FRESH, RUNS
from kvrescue.testing.laws import LawBroken, broken, checked_examples, search
from kvrescue.testing.pools import QUESTIONS, STEPS, context_of
from kvrescue.testing.reading import Case, Events, Reading
from kvrescue.testing.streams import LONG, QUIET, Stream, shrunk, tokens_from
from kvrescue.types import Context, Question

__all__ = ["DETECTOR_LAWS", "Stream", "check_detector"]

_WORDS = ("a", "ab", " x", "\n", "xyz", "", "é", "数", "\N{GRINNING FACE}b", "0 & 0")


def check_detector(
    detector: Detector,
    *,
    fires_on: str | Sequence[TokenEvent | str] | None = None,
    context: Context | Sequence[str] = (),
    examples: int = 100,
) -> None:
    """Search for tokens on which a detector breaks one of `DETECTOR_LAWS`.

    Args:
        detector: configured; small windows and low thresholds make verdicts common.
        fires_on: tokens that make it fire, where no loop, no noise and no high entropy does: a
            text for each, or a TokenEvent; a text alone is read character by character.
        context: the committed steps after which they do, for a detector with `start_in`: texts, or
            a Context.
        examples: streams to try.

    Raises:
        LawBroken: it does.
        ConfigError: not a detector, not a list of tokens, or no steps.
    """
    __tracebackhide__ = True
    require(detector, Detector, "detector")
    examples = checked_examples(examples)
    given = None if fires_on is None else tokens_from(fires_on, "fires_on")
    home = _home(context)
    check_options("detector", detector)
    who = name_of("detector", detector)
    reading = Reading(detector, who, home, _contexts(home))
    known = _known_stream(reading, given)
    reading.learn(known.events)
    for stream in (known, *QUIET):
        _first(reading, stream)
    cases = _cases(known, parts=given is not None)
    search(cases, reading, examples=examples, component=who, runs=RUNS)
    search(st.just(Case(known, Stream())), reading.remembered, examples=1, component=who, runs=RUNS)


def _home(given: Context | Sequence[str]) -> Context:
    if isinstance(given, Context):
        return given
    if isinstance(given, list | tuple) and all(isinstance(text, str) for text in given):
        return context_of(QUESTIONS[0], given)
    raise ConfigError(
        f"context = {given!r}: expected the texts of the committed steps, or a kvrescue.Context"
    )


def _contexts(home: Context) -> tuple[Context, ...]:
    """Others: the same trajectory, its question anew, another question, without steps and with."""
    question, steps = home.question.text, [step.text for step in home.steps]
    other = QUESTIONS[1] if question != QUESTIONS[1] else QUESTIONS[0]
    return (
        home,
        Context(home.question),
        context_of(question, [*steps, STEPS[1]]),
        context_of(other),
        context_of(other, STEPS[2:5]),
    )


def _first(reading: Reading, stream: Stream) -> None:
    """A stream that is always read; where it breaks a law, so do fewer tokens of it."""
    __tracebackhide__ = True
    who = reading.who
    try:
        search(st.just(Case(stream, Stream())), reading, examples=1, component=who, runs=RUNS)
    except LawBroken as error:
        found = error
    else:
        return

    def breaks(events: Events) -> bool:
        nonlocal found
        try:
            reading(Case(Stream(events), Stream()))
        except LawBroken as error:
            if error.law is found.law:
                found = error
                return True
        return False

    shrunk(stream.events, breaks)
    raise found.again(None) from found.__cause__


def _known_stream(reading: Reading, given: Events | None) -> Stream:
    """Tokens that make the detector fire, and a few that follow; quiet ones are read before."""
    __tracebackhide__ = True
    detector, who = reading.detector, reading.who
    streams = LONG if given is None else (Stream(given),)

    def fires(stream: Stream) -> int:
        verdict, count = reading.raw(detector, stream.events)
        reading.firsts.setdefault(stream.events, verdict)
        return 0 if verdict is None else count

    tried: list[tuple[Stream, int]] = []

    def find(stream: Stream) -> None:
        if not tried and (count := fires(stream)):
            tried.append((stream, count))

    def quiet(stream: Stream) -> None:
        fires(stream)

    for stream in QUIET:
        search(st.just(stream), quiet, examples=1, component=who, runs=RUNS)
    for stream in streams:
        search(st.just(stream), find, examples=1, component=who, runs=RUNS)

    def plainly(stream: Stream) -> None:
        reading.raw(detector, stream.events, plain=True)

    if not tried:
        if given is not None:
            _look_elsewhere(reading, given)
        seen = f"no verdict on {len(streams)} streams of 1,500 tokens"
        if given is not None:
            seen = f"no verdict on `fires_on`, {Stream(given)}"
            steps = [step.text for step in reading.home.steps]
            seen += f", after {steps}" if steps else ", in a context without steps (`context=`)"
        broken(FIRES, who, seen, "one")
    found, count = tried[0]
    if found.block:
        times = -(-(count - len(found.head)) // len(found.block))
        shorter = dataclasses.replace(found, count=max(1, times), tail=found.block[:3])
        reading.firsts[shorter.events] = reading.firsts.pop(found.events)
        found = shorter
    search(st.just(found), plainly, examples=1, component=who, runs=RUNS)
    return found


def _look_elsewhere(reading: Reading, given: Events) -> None:
    """Does it fire in a context that nobody has named yet? Then it is what was read that counts."""
    __tracebackhide__ = True
    home = reading.home
    new = Context(Question(home.question.text, "asked nowhere else"), home.steps)
    verdict, count = reading.raw(reading.detector, given, new)
    if verdict is not None:
        seen = f"a verdict at token {count} in a context asked for the first time; none after other"
        reading.fail(FRESH, given, f"{seen} candidates of it were read", "the same", count)


def _cases(known: Stream, *, parts: bool) -> st.SearchStrategy[Case]:
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
    places = st.integers(0, len(known.head))
    part = st.builds(
        lambda one, two: Stream(known.head[min(one, two) : max(one, two)]), places, places
    )
    streams = st.one_of(free, part, around) if parts else st.one_of(free, around)
    cuts = st.lists(st.integers(1, 6), min_size=1, max_size=6).map(tuple)
    return st.builds(Case, streams, streams, cuts, st.integers(0, 4))

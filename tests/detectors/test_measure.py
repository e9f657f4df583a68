"""Laws of `measure`: the one value of a candidate that decides, whatever the threshold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.detectors import (
    Cutoff,
    Detector,
    DetectorState,
    EntropyDetector,
    GzipDetector,
    NgramDetector,
    TokenEvent,
)
from kvrescue.detectors.base import tokens_read
from kvrescue.detectors.replay import most_severe, read, token_events
from kvrescue.errors import ConfigError, DetectorError
from kvrescue.types import Candidate, StopReason, Verdict
from tests.detectors.matrix import CONFIGURED, STREAMS

every_detector = pytest.mark.parametrize("detector", CONFIGURED.values(), ids=CONFIGURED.keys())


def candidate(events: list[TokenEvent], stop: StopReason = StopReason.LENGTH) -> Candidate:
    return Candidate(
        policy="base",
        index=0,
        text="".join(event.text for event in events),
        token_ids=tuple(event.token_id for event in events),
        stop=stop,
        entropies=tuple(event.entropy for event in events),
    )


@st.composite
def thresholds(draw: st.DrawFn, detector: Detector, value: float | None) -> float:
    """Legal ones, close to the measured value and far from it."""
    field = detector.known_cutoff.option
    if type(detector).model_fields[field].annotation is int:
        near = int(value or 0)
        return draw(st.integers(1, 80) | st.integers(max(1, near - 2), near + 2))
    free = st.floats(0.01, 1.0 if isinstance(detector, GzipDetector) else 12.0)
    if value is None or not 0 < value <= 1:
        return draw(free)
    around = [value, math.nextafter(value, 0), min(1.0, math.nextafter(value, 1))]
    return draw(free | st.sampled_from(around))


@every_detector
@given(events=STREAMS, stop=st.sampled_from([StopReason.LENGTH, StopReason.EOS]), data=st.data())
@settings(max_examples=80)
def test_a_candidate_is_flagged_exactly_if_its_measure_is_beyond_the_threshold(
    detector: Detector, events: list[TokenEvent], stop: StopReason, data: st.DataObject
) -> None:
    if stop is StopReason.EOS and events:  # which has no characters
        events = [*events[:-1], replace(events[-1], text="")]
    made = candidate(events, stop)
    value = detector.measure(made)
    threshold = data.draw(thresholds(detector, value))
    # As the engine feeds it: the tokens as they were, EOS left out.
    verdict = read(detector.at(threshold), events[: tokens_read(made)])
    expected = value is not None and detector.known_cutoff.beyond(value, threshold)
    assert (verdict is not None) == expected


@every_detector
@given(events=STREAMS)
@settings(max_examples=40)
def test_verdicts_alone_tell_the_same_value(detector: Detector, events: list[TokenEvent]) -> None:
    made = candidate(events)
    found = most_severe(detector, made)
    if isinstance(detector, NgramDetector) and found is None:
        assert not detector.measure(made)  # no repetition is 0, no room is None
    else:
        assert detector.measure(made) == found


@given(events=STREAMS, stop=st.sampled_from(StopReason))
def test_a_replay_has_the_tokens_that_were_read(events: list[TokenEvent], stop: StopReason) -> None:
    made = candidate(events, stop)
    replayed = list(token_events(made))
    count = tokens_read(made)
    assert [event.token_id for event in replayed] == [e.token_id for e in events[:count]]
    assert [event.entropy for event in replayed] == [e.entropy for e in events[:count]]
    assert "".join(event.text for event in replayed) == (made.text if count else "")


class LongestWord(Detector):
    """A plugin's: fires where a word has more than `most` letters."""

    kind: ClassVar[str] = "longest_word"
    cutoff: ClassVar[Cutoff | None] = Cutoff("most", unit="letters")

    most: float = 20.0
    honest: bool = True

    def start(self) -> DetectorState:
        return _Words(self)


class _Words(DetectorState):
    def __init__(self, detector: LongestWord) -> None:
        self._detector = detector
        self._length = 0
        self._position = 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self._position += 1
        found = None
        for letter in event.text:
            self._length = self._length + 1 if letter.isalpha() else 0
            if found is None and self._length > self._detector.most:
                value = float(self._length) if self._detector.honest else -math.inf
                found = Verdict("longest_word", "long", self._position, value, self._detector.most)
        return found


@given(st.text("ab ", max_size=60), st.floats(0, 12))
def test_a_plugin_needs_a_cutoff_and_no_more(text: str, most: float) -> None:
    made = candidate([TokenEvent(0, text[:9], 1.0), TokenEvent(1, text[9:], 1.0)])
    longest = max(map(len, text.split()), default=0)
    assert LongestWord().measure(made) == (longest if text else None)
    assert (read(LongestWord(most=most), token_events(made)) is not None) == (longest > most)


def test_verdicts_that_do_not_tell_the_value_are_refused() -> None:
    made = candidate([TokenEvent(0, "abc", 1.0)])
    with pytest.raises(DetectorError, match="which it should not"):
        LongestWord(honest=False).measure(made)


class Silent(Detector):
    kind: ClassVar[str] = "silent"

    def start(self) -> DetectorState:
        raise NotImplementedError


def test_a_detector_without_a_threshold_says_so() -> None:
    with pytest.raises(DetectorError, match="'silent' cannot be calibrated"):
        Silent().measure(candidate([]))
    with pytest.raises(DetectorError, match="has no `cutoff`"):
        Silent().at(1.0)


def test_another_threshold_is_checked() -> None:
    changed = EntropyDetector(guard=3).at(2.5)
    assert changed == EntropyDetector(guard=3, threshold=2.5)
    with pytest.raises(ConfigError, match="threshold"):
        GzipDetector().at(1.5)

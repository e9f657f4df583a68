"""Laws that hold for every detector of the matrix (design, law 8: online and causal)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvrescue.detectors import Detector, DetectorBank, EntropyDetector, GzipDetector, TokenEvent
from tests.detectors.matrix import CONFIGURED, EVENTS, STREAMS, read
from tests.detectors.reference import batch

every_detector = pytest.mark.parametrize("detector", CONFIGURED.values(), ids=CONFIGURED.keys())


@every_detector
@given(events=STREAMS)
@settings(max_examples=60)
def test_one_token_at_a_time_equals_the_batch_reference(
    detector: Detector, events: list[TokenEvent]
) -> None:
    verdict = read(detector, events)
    found = verdict and (verdict.position, verdict.value, verdict.char_position)
    assert found == batch(detector, events)


@every_detector
@given(events=STREAMS, future=st.lists(EVENTS, max_size=8))
def test_the_future_does_not_change_a_verdict(
    detector: Detector, events: list[TokenEvent], future: list[TokenEvent]
) -> None:
    verdict = read(detector, events)
    if verdict is None:
        later = read(detector, events + future)
        assert later is None or later.position > len(events)
    else:
        assert read(detector, events[: verdict.position] + future) == verdict
        assert read(detector, events[: verdict.position - 1]) is None


@every_detector
@given(first=STREAMS, second=STREAMS)
def test_candidates_do_not_see_each_other(
    detector: Detector, first: list[TokenEvent], second: list[TokenEvent]
) -> None:
    streams = [first, second]
    states = [detector.start(), detector.start()]
    found: list[object] = [None, None]
    for n in range(max(map(len, streams))):
        for row, stream in enumerate(streams):
            if n < len(stream) and found[row] is None:
                found[row] = states[row].update(stream[n])
    assert found == [read(detector, stream) for stream in streams]


@every_detector
@given(events=STREAMS)
def test_a_verdict_says_who_where_and_how_much(
    detector: Detector, events: list[TokenEvent]
) -> None:
    verdict = read(detector, events)
    if verdict is not None:
        assert verdict.detector == detector.kind
        assert 1 <= verdict.position <= len(events)
        assert math.isfinite(verdict.value)
        assert math.isfinite(verdict.threshold)
        assert verdict.reason
        assert (verdict.char_position is None) == (not isinstance(detector, GzipDetector))


@every_detector
@given(events=STREAMS)
def test_each_detector_reads_one_signal_only(detector: Detector, events: list[TokenEvent]) -> None:
    def blind(event: TokenEvent) -> TokenEvent:
        if isinstance(detector, EntropyDetector):
            return replace(event, token_id=0, text="")
        if isinstance(detector, GzipDetector):
            return replace(event, token_id=0, entropy=math.nan)
        return replace(event, text="", entropy=math.nan)

    assert read(detector, [blind(event) for event in events]) == read(detector, events)


@every_detector
def test_the_matrix_makes_it_fire(detector: Detector) -> None:
    events = [TokenEvent(n % 3, "ab", 9.0) for n in range(60)]
    assert read(detector, events) is not None


@every_detector
def test_options_are_frozen_values(detector: Detector) -> None:
    again = type(detector).model_validate_json(detector.model_dump_json())
    assert again == detector
    assert hash(again) == hash(detector)
    field = next(iter(type(detector).model_fields))
    with pytest.raises(ValidationError):
        setattr(detector, field, 1)
    with pytest.raises(ValidationError):
        type(detector).model_validate({"no_such_option": 1})


@given(
    events=STREAMS,
    names=st.lists(st.sampled_from(sorted(CONFIGURED)), max_size=4),
)
def test_a_bank_fires_with_its_earliest_detector_and_the_first_listed_of_equals(
    events: list[TokenEvent], names: list[str]
) -> None:
    detectors = [CONFIGURED[name] for name in names]
    alone = [verdict for d in detectors if (verdict := read(d, events)) is not None]
    expected = min(alone, key=lambda verdict: verdict.position, default=None)
    bank = DetectorBank(detectors)
    found = None
    for event in events:
        found = bank.update(event)
        if found is not None:
            break
    assert found == expected == bank.verdict

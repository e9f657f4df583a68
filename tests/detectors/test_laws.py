"""Every detector of the matrix against a reference that reads the whole candidate.

That detection is online and causal is a law of `check_detector` (tests/kit)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.detectors import Detector, DetectorBank, EntropyDetector, GzipDetector, TokenEvent
from tests.detectors.matrix import CONFIGURED, STREAMS, read
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
@given(events=STREAMS)
def test_each_detector_reads_one_signal_only(detector: Detector, events: list[TokenEvent]) -> None:
    def blind(event: TokenEvent) -> TokenEvent:
        if isinstance(detector, EntropyDetector):
            return replace(event, token_id=0, text="")
        if isinstance(detector, GzipDetector):
            return replace(event, token_id=0, entropy=math.nan)
        return replace(event, text="", entropy=math.nan)

    assert read(detector, [blind(event) for event in events]) == read(detector, events)


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

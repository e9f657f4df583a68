"""Every built-in detector, configured so small that short inputs make it fire.

A new detector enters here (and in `reference.py`) and gets all laws of `test_laws.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from kvrescue.detectors import (
    Detector,
    EntropyDetector,
    GzipDetector,
    NgramDetector,
    TokenEvent,
)
from kvrescue.types import Verdict

CONFIGURED: dict[str, Detector] = {
    "entropy": EntropyDetector(threshold=6.0, guard=3, window=4),
    "entropy, window above guard": EntropyDetector(threshold=6.0, guard=0, window=5),
    "gzip": GzipDetector(threshold=0.9, window_chars=40, stride_chars=3),
    "gzip, gapless": GzipDetector(threshold=0.9, window_chars=40, stride_chars=1),
    "ngram": NgramDetector(max_period=5, min_count=2, min_span=6),
    "ngram, no short periods": NgramDetector(min_period=3, max_period=9, min_count=3, min_span=2),
}

_WORDS = ["a", "ab", " x", "\n", "xyz", "", "é", "数", "\N{GRINNING FACE}b", "0 & 0"]

EVENTS = st.builds(
    TokenEvent,
    token_id=st.integers(0, 3),
    text=st.sampled_from(_WORDS),
    entropy=st.floats(0.0, 11.9),
)


def _mixed() -> st.SearchStrategy[list[TokenEvent]]:
    """Free tokens around a repeated block, so that both outcomes are common."""
    free = st.lists(EVENTS, max_size=25)
    block = st.lists(EVENTS, min_size=1, max_size=6)
    return st.builds(
        lambda head, loop, count, tail: head + loop * count + tail,
        free,
        block,
        st.integers(0, 12),
        free,
    )


STREAMS = _mixed()


def read(detector: Detector, events: Sequence[TokenEvent]) -> Verdict | None:
    """Feed a fresh state until it fires."""
    state = detector.start()
    for event in events:
        verdict = state.update(event)
        if verdict is not None:
            return verdict
    return None

"""Each detector written again as the plainest batch function: whole input in, first verdict out.

Nothing is shared with the library but the option values. A result is (position, value,
char_position), or None.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence

from kvrescue.detectors import Detector, EntropyDetector, GzipDetector, NgramDetector, TokenEvent

Found = tuple[int, float, int | None] | None


def entropy(detector: EntropyDetector, events: Sequence[TokenEvent]) -> Found:
    for position in range(1, len(events) + 1):
        window = [event.entropy for event in events[:position]][-detector.window :]
        if position > detector.guard and len(window) == detector.window:
            mean = math.fsum(window) / len(window)
            if mean > detector.threshold:
                return position, mean, None
    return None


def compressed(detector: GzipDetector, events: Sequence[TokenEvent]) -> Found:
    text = "".join(event.text for event in events)
    for end in range(detector.window_chars, len(text) + 1, detector.stride_chars):
        raw = text[end - detector.window_chars : end].encode()
        ratio = len(gzip.compress(raw, 9, mtime=0)) / len(raw)
        if ratio < detector.threshold:
            position = next(
                n
                for n in range(1, len(events) + 1)
                if len("".join(event.text for event in events[:n])) >= end
            )
            return position, ratio, end
    return None


def _primitive(block: Sequence[int]) -> bool:
    size = len(block)
    return not any(
        size % part == 0 and list(block) == list(block[:part]) * (size // part)
        for part in range(1, size)
    )


def ngram(detector: NgramDetector, events: Sequence[TokenEvent]) -> Found:
    ids = [event.token_id for event in events]
    for position in range(1, len(ids) + 1):
        tail = ids[:position]
        for period in range(detector.min_period, detector.max_period + 1):
            span = min(period, position)
            while span < position and tail[-span - 1] == tail[-span - 1 + period]:
                span += 1
            enough = span >= max(detector.min_count * period, detector.min_span)
            if enough and _primitive(tail[-period:]):
                return position, float(span), None
    return None


def batch(detector: Detector, events: Sequence[TokenEvent]) -> Found:
    if isinstance(detector, EntropyDetector):
        return entropy(detector, events)
    if isinstance(detector, GzipDetector):
        return compressed(detector, events)
    assert isinstance(detector, NgramDetector)
    return ngram(detector, events)

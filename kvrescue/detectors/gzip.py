"""Gzip detector: a loop compresses far better than reasoning does.

Paper, equation 5: a candidate ends when the compressed size of a window over its most recent
text, divided by the window's raw size, falls below a threshold. What is pinned here:

- The window is `window_chars` *characters* of decoded text. Nothing is evaluated before the
  window is full, because gzip's fixed header dominates short texts. A typical step is shorter
  than 800 characters, so the detector is silent on it: it sees long runaways only.
- The ratio is bytes over bytes: the gzip stream's length over the length of the window's UTF-8
  encoding. For ASCII this equals bytes per character; for other scripts the two differ, and
  bytes over bytes keeps one meaning for the threshold.
- The stream is the gzip container at level 9 with mtime 0. zlib's own container is 12 bytes
  shorter (0.015 of 800), so thresholds do not carry over. An interpreter linked to zlib-ng
  instead of zlib compresses to slightly other sizes.
- Windows end at characters `window_chars`, `window_chars + stride_chars`, and so on, counted in
  the candidate's text. The verdict's `char_position` is such an end and is the same however the
  text is split into tokens; `position` is the token that completed it.

Limits, measured in `tests/detectors/test_traps.py`: at the defaults a loop is found up to a
period of about 150 characters and missed from about 180 on (`ngram` finds those); honest
repetition, such as a large identity matrix, is flagged; and as one candidate is all a detector
reads, the same short step committed again and again is invisible.
"""

from __future__ import annotations

import zlib
from typing import ClassVar

from pydantic import Field, model_validator

from kvrescue.detectors.base import Cutoff, Detector, DetectorState, Source, TokenEvent
from kvrescue.errors import DetectorError
from kvrescue.types import Candidate, Verdict

__all__ = ["GzipDetector", "gzip_bytes", "gzip_ratio"]

LEVEL = 9

MAX_CHARS_PER_TOKEN = 64
"""Generous bound on the average length of a token, to tell windows that can never fill."""


def gzip_bytes(data: bytes) -> bytes:
    """`data` as a gzip stream: level 9, mtime 0.

    The same bytes as `gzip.compress(data, 9, mtime=0)` up to the header's operating-system
    byte, which depends on the Python version. Deflate is given only the window and the memory
    that `data` fills: most of the time for 800 bytes would else go into clearing 256 KiB.
    """
    size = len(data)
    window_bits = min(max((size + 261).bit_length(), 9), 15)  # a match may reach 2^bits - 262
    memory = min(max((size + 1).bit_length() - 6, 4), 8)  # a block holds 2^(memory + 6) - 1 symbols
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + window_bits, memory)
    return compressor.compress(data) + compressor.flush()


def gzip_ratio(text: str) -> float:
    """Compressed over raw size in bytes of a text that is not empty."""
    data = text.encode("utf-8", "surrogatepass")
    return len(gzip_bytes(data)) / len(data)


class GzipDetector(Detector):
    """Fires where the last `window_chars` characters compress below `threshold`."""

    kind: ClassVar[str] = "gzip"
    cutoff: ClassVar[Cutoff | None] = Cutoff(above=False, unit="bytes/bytes")

    threshold: float = Field(default=0.18, gt=0, le=1, allow_inf_nan=False)
    """Compressed over raw bytes; the detector fires strictly below it."""
    window_chars: int = Field(default=800, ge=1)
    """Characters (not tokens) in a window."""
    stride_chars: int = Field(default=8, ge=1)
    """Characters between the ends of consecutive windows."""

    @model_validator(mode="after")
    def _windows_leave_no_gap(self) -> GzipDetector:
        if self.stride_chars > self.window_chars:
            raise DetectorError(
                f"gzip detector: stride_chars {self.stride_chars} is larger than window_chars "
                f"{self.window_chars}, so part of the text would never be read"
            )
        return self

    @property
    def lowest_ratio(self) -> float:
        """The smallest ratio of ASCII text: one character repeated through the window."""
        return gzip_ratio("a" * self.window_chars)

    def start(self) -> GzipState:
        return GzipState(self)

    def measure(self, candidate: Candidate) -> float | None:
        """The least ratio of a full window."""
        text, width = candidate.text, self.window_chars
        ends = range(width, len(text) + 1, self.stride_chars)
        return min((gzip_ratio(text[end - width : end]) for end in ends), default=None)

    def check(self, source: Source) -> None:
        if self.window_chars > MAX_CHARS_PER_TOKEN * source.max_step_tokens:
            raise DetectorError(
                f"gzip detector: a window of {self.window_chars} characters can never fill: a "
                f"step has at most {source.max_step_tokens} tokens, "
                f"{MAX_CHARS_PER_TOKEN * source.max_step_tokens} characters at "
                f"{MAX_CHARS_PER_TOKEN} a token. Lower `window_chars`"
            )
        lowest = self.lowest_ratio
        if self.threshold <= lowest:
            raise DetectorError(
                f"gzip detector: threshold {self.threshold:g} can never be undercut: "
                f"{self.window_chars} equal characters still have a ratio of {lowest:.4f}. "
                "Raise `threshold` or `window_chars`"
            )


class GzipState(DetectorState):
    """The tail of one candidate's text that later windows need."""

    __slots__ = ("_chars", "_detector", "_end", "_position", "_start", "_tail")

    def __init__(self, detector: GzipDetector) -> None:
        self._detector = detector
        self._tail = ""
        self._start = 0
        """Character position of the tail's first character."""
        self._chars = 0
        self._end = detector.window_chars
        """Where the next window ends."""
        self._position = 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self._position += 1
        if not event.text:
            return None
        self._tail += event.text
        self._chars += len(event.text)
        if self._chars < self._end:
            return None
        detector = self._detector
        width = detector.window_chars
        while self._end <= self._chars:
            stop = self._end - self._start
            ratio = gzip_ratio(self._tail[stop - width : stop])
            if ratio < detector.threshold:
                return Verdict(
                    detector=detector.kind,
                    reason=(
                        f"repetitive: the {width} characters up to {self._end} compress to "
                        f"{ratio:.3f} of their size, below {detector.threshold:g}"
                    ),
                    position=self._position,
                    value=ratio,
                    threshold=detector.threshold,
                    char_position=self._end,
                )
            self._end += detector.stride_chars
        needed = self._end - width
        self._tail = self._tail[needed - self._start :]
        self._start = needed
        return None

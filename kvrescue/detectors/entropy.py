"""Entropy detector: incoherent text is written at sustained high entropy.

Paper, equation 4: a candidate ends when the moving average of the next-token entropy exceeds a
threshold. Positions count tokens of the candidate from 1. What the two lengths mean here:

- `window`: the mean is always over exactly the last `window` entropies, never over fewer.
- `guard`: no verdict at the first `guard` positions. Their entropies are read, so the first
  window may reach back into them.

The first position that can get a verdict is therefore `max(guard + 1, window)`: 25 with the
paper's 24 and 12, where the mean is over positions 14 to 25.

The threshold is in nats of the full next-token distribution, before temperature and truncation.
Entropy over a server's top 20 log-probabilities, or after top-k 20, is at most ln 20 = 3.00, so
the paper's 7.0 could never fire there: `check` refuses such a pair.

A loop is confident, hence low in entropy: `gzip` and `ngram` look for those. Like every built-in
detector this one reads one candidate; a trajectory that repeats itself step after step is
invisible to it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar

from pydantic import Field

from kvrescue.detectors.base import Cutoff, Detector, DetectorState, Source, TokenEvent, tokens_read
from kvrescue.errors import DetectorError, NonFiniteLogitsError
from kvrescue.types import Candidate, Verdict

__all__ = ["EntropyDetector"]

# What an entropy can be. The lower bound leaves room for rounding below zero; the upper one is
# far above ln of any vocabulary. The comparison also catches NaN and infinities.
_LOWEST, _HIGHEST = -0.1, 1000.0


class EntropyDetector(Detector):
    """Fires where the mean entropy of the last `window` tokens exceeds `threshold` nats.

    An entropy that is not a finite, plausible number raises `NonFiniteLogitsError` at the token
    that carries it, guarded or not: it never enters a mean, and a broken feed does not pass for
    a degenerate candidate.
    """

    kind: ClassVar[str] = "entropy"
    cutoff: ClassVar[Cutoff | None] = Cutoff(unit="nats")

    threshold: float = Field(default=7.0, gt=0, allow_inf_nan=False)
    """Nats; the detector fires strictly above it."""
    guard: int = Field(default=24, ge=0)
    """Positions at the candidate's start that get no verdict."""
    window: int = Field(default=12, ge=1)
    """Entropies in the mean."""

    @property
    def first_position(self) -> int:
        """The earliest position that can get a verdict."""
        return max(self.guard + 1, self.window)

    def start(self) -> EntropyState:
        return EntropyState(self)

    def measure(self, candidate: Candidate) -> float | None:
        """The largest mean at the positions that can get a verdict, in nats; means that are not
        finite are left out."""
        entropies, window = candidate.entropies[: tokens_read(candidate)], self.window
        means = [
            math.fsum(entropies[end - window : end]) / window
            for end in range(self.first_position, len(entropies) + 1)
        ]
        return max(filter(math.isfinite, means), default=None)

    def check(self, source: Source) -> None:
        support, ceiling = _ceiling(source)
        if self.threshold >= ceiling:
            raise DetectorError(
                f"entropy detector: threshold {self.threshold:g} nats can never be exceeded: "
                f"{source.entropy!r} entropy over {support} tokens is at most "
                f"ln({support}) = {ceiling:.2f}. Lower `threshold`, or feed raw "
                "full-vocabulary entropy"
            )
        if self.first_position > source.max_step_tokens:
            raise DetectorError(
                f"entropy detector: guard {self.guard} and window {self.window} allow a first "
                f"verdict at token {self.first_position}, but a step ends after at most "
                f"{source.max_step_tokens} tokens. Lower `guard` or `window`"
            )


class EntropyState(DetectorState):
    """The last `window` entropies of one candidate."""

    __slots__ = ("_detector", "_entropies", "_first", "_position", "_threshold", "_window")

    def __init__(self, detector: EntropyDetector) -> None:
        self._detector = detector
        self._window = detector.window
        self._threshold = detector.threshold
        self._first = detector.first_position
        self._entropies: deque[float] = deque(maxlen=detector.window)
        self._position = 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self._position += 1
        entropy = event.entropy
        if not _LOWEST <= entropy <= _HIGHEST:
            raise NonFiniteLogitsError(
                f"entropy detector: the entropy at token {self._position} is {entropy!r}, "
                "which no distribution has; check the model's logits and the entropy the "
                "engine derives from them"
            )
        self._entropies.append(entropy)
        if self._position < self._first:
            return None
        mean = math.fsum(self._entropies) / self._window
        if mean <= self._threshold:
            return None
        return Verdict(
            detector=self._detector.kind,
            reason=(
                f"incoherent: mean entropy {mean:.3f} nats over the last {self._window} "
                f"tokens exceeds {self._threshold:g}"
            ),
            position=self._position,
            value=mean,
            threshold=self._threshold,
        )


def _ceiling(source: Source) -> tuple[int, float]:
    """Number of tokens the entropy runs over, and the largest value it can take."""
    if source.entropy == "none":
        raise DetectorError(
            "entropy detector: this source delivers no entropy. Remove the detector, or use a "
            "policy that computes entropy"
        )
    if source.entropy not in ("raw", "processed", "top"):
        raise DetectorError(
            f"entropy detector: unknown entropy source {source.entropy!r}; "
            "valid: none, processed, raw, top"
        )
    support = source.vocab_size
    if source.entropy != "raw":
        if source.support is not None:
            support = min(support, source.support)
        elif source.entropy == "top":
            raise DetectorError(
                "entropy detector: a source of 'top' entropy must say over how many tokens "
                "(`support`)"
            )
    return support, math.log(support) if support > 0 else 0.0

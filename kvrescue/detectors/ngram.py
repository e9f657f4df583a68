"""N-gram detector: the tail of the token ids repeats exactly.

It finds what compression misses: a loop whose period is so long that the gzip window holds only
a few repeats. It reads token ids, so it needs no text and no entropy.

A tail has period p when each of its tokens equals the one p before it; its *span* is the length
of the longest such tail. The detector fires when the span of some period reaches both
`min_count` whole repeats and `min_span` tokens. `min_span` is what lets honest short
repetition pass: a row of dashes, a small table or a few dozen decimals are short, a runaway is
not. Of several periods the smallest is reported, and the period counts only if it is primitive:
a run of one token has period 1, not 2 or 3, so with `min_period` 2 it is never flagged.

Cost per token: one step per earlier occurrence of the same token among the last `max_period`,
nothing is rescanned.

Limits: a loop with a counter or another small variation is not exact repetition (`gzip` finds
the short ones); honest repetition beyond `min_span` tokens, such as 200 zeros, is flagged; a
period above `max_period`, or one that fits fewer than `min_count` times into a step, is missed;
and as one candidate is all a detector reads, the same short step committed again and again is
invisible.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import ClassVar

from pydantic import Field, model_validator

from kvrescue.detectors.base import Cutoff, Detector, DetectorState, Source, TokenEvent, tokens_read
from kvrescue.errors import DetectorError
from kvrescue.types import Candidate, Verdict

__all__ = ["NgramDetector"]


class NgramDetector(Detector):
    """Fires where the last tokens are one pattern repeated, long and often enough."""

    kind: ClassVar[str] = "ngram"
    cutoff: ClassVar[Cutoff | None] = Cutoff("min_span", inclusive=True, unit="tokens")

    min_period: int = Field(default=1, ge=1)
    """Tokens in the shortest pattern that is flagged."""
    max_period: int = Field(default=128, ge=1)
    """Tokens in the longest pattern that is looked for."""
    min_count: int = Field(default=3, ge=2)
    """Whole repeats of the pattern."""
    min_span: int = Field(default=128, ge=1)
    """Tokens that the repeats must cover together."""

    @model_validator(mode="after")
    def _periods_are_ordered(self) -> NgramDetector:
        if self.min_period > self.max_period:
            raise DetectorError(
                f"ngram detector: min_period {self.min_period} is larger than max_period "
                f"{self.max_period}"
            )
        return self

    def required_span(self, period: int) -> int:
        """Tokens that a tail of this period must cover to be flagged."""
        return max(self.min_count * period, self.min_span)

    def start(self) -> NgramState:
        return NgramState(self)

    def measure(self, candidate: Candidate) -> float | None:
        """Tokens of the longest span that holds `min_count` repeats of a pattern; 0 where nothing
        repeats so often, None where the candidate has no room for it."""
        tokens = candidate.token_ids[: tokens_read(candidate)]
        if len(tokens) < self.min_count * self.min_period:
            return None
        state, longest = NgramState(self.model_copy(update={"min_span": 1})), 0
        for token in tokens:
            state.update(TokenEvent(token, "", 0.0))
            longest = max(longest, state.span)
        return float(longest)

    def check(self, source: Source) -> None:
        shortest = self.required_span(self.min_period)
        if shortest > source.max_step_tokens:
            raise DetectorError(
                f"ngram detector: {self.min_count} repeats of {self.min_period} or more tokens "
                f"over a span of {self.min_span} need {shortest} tokens, but a step ends after "
                f"at most {source.max_step_tokens}. Lower `min_span`, `min_count` or "
                "`min_period`"
            )


@functools.lru_cache(maxsize=64)
def _required_matches(detector: NgramDetector) -> tuple[int, ...]:
    """Matching tokens in a row that flag a period; index 0 is unused.

    The first `period` tokens of a span have nothing to match, hence the difference.
    """
    periods = range(1, detector.max_period + 1)
    return (0, *(detector.required_span(period) - period for period in periods))


class NgramState(DetectorState):
    """For each period that the last token continues: for how many tokens it has held."""

    __slots__ = (
        "_detector",
        "_matches",
        "_max_period",
        "_places",
        "_position",
        "_recent",
        "_required",
    )

    def __init__(self, detector: NgramDetector) -> None:
        self._detector = detector
        self._required = _required_matches(detector)
        self._max_period = detector.max_period
        self._position = 0
        self._recent: deque[int] = deque()
        """The last `max_period` tokens."""
        self._places: dict[int, deque[int]] = {}
        """Positions of each of them."""
        self._matches: dict[int, int] = {}

    @property
    def span(self) -> int:
        """Tokens of the longest tail that holds enough repeats of a primitive pattern; 0: none."""
        detector, longest = self._detector, 0
        shortest = detector.min_period
        covered = max((held + q for q, held in self._matches.items() if q < shortest), default=0)
        for period, held in self._matches.items():
            enough = detector.min_count * period
            if period >= shortest and held + period >= enough and covered < held + period:
                longest = max(longest, held + period)
        return longest

    def update(self, event: TokenEvent) -> Verdict | None:
        token = event.token_id
        self._position = position = self._position + 1
        before, required = self._matches, self._required
        matches: dict[int, int] = {}
        reached: list[int] = []
        places = self._places.get(token)
        if places is None:
            places = self._places[token] = deque()
        for place in places:
            period = position - place
            matches[period] = held = before.get(period, 0) + 1
            if held >= required[period]:
                reached.append(period)
        self._matches = matches
        self._remember(token, places, position)
        return self._verdict(reached) if reached else None

    def _remember(self, token: int, places: deque[int], position: int) -> None:
        places.append(position)
        self._recent.append(token)
        if len(self._recent) > self._max_period:
            oldest = self._recent.popleft()
            of_oldest = self._places[oldest]
            of_oldest.popleft()
            if not of_oldest:
                del self._places[oldest]

    def _verdict(self, reached: list[int]) -> Verdict | None:
        detector = self._detector
        shortest = detector.min_period
        # Where a period and a shorter one both cover two of the longer, their common divisor is
        # a period, too (Fine and Wilf): the longer is not primitive.
        covered = max((held + q for q, held in self._matches.items() if q < shortest), default=0)
        for period in sorted(reached):
            needed = detector.required_span(period)
            if period >= shortest and covered < needed:
                span = self._matches[period] + period
                return Verdict(
                    detector=detector.kind,
                    reason=(
                        f"repetitive: the last {span} tokens are a pattern of {period}, "
                        f"{span / period:.1f} times over; the limit is {needed} tokens"
                    ),
                    position=self._position,
                    value=float(span),
                    threshold=float(needed),
                )
        return None

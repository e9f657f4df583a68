"""Replay: a recorded candidate read again by a detector, without the model that wrote it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from kvrescue.detectors.base import Detector, TokenEvent, tokens_read
from kvrescue.errors import DetectorError
from kvrescue.types import Candidate, Verdict

__all__ = ["most_severe", "read", "token_events"]


def token_events(candidate: Candidate) -> Iterator[TokenEvent]:
    """The tokens of a candidate as a detector saw them.

    A candidate keeps its text whole, so the characters are dealt out evenly over its tokens.
    Detectors that read text tell the same place however it is split (a law of theirs); one that
    pairs a token's id with its characters needs the tokenizer and cannot be replayed. Entropies
    that were not recorded are NaN.
    """
    count, text = tokens_read(candidate), candidate.text
    known = len(candidate.entropies) == candidate.n_tokens
    for place, token in enumerate(candidate.token_ids[:count]):
        piece = text[place * len(text) // count : (place + 1) * len(text) // count]
        yield TokenEvent(token, piece, candidate.entropies[place] if known else math.nan)


def read(detector: Detector, events: Iterable[TokenEvent]) -> Verdict | None:
    """The verdict of a fresh state on these tokens; None when it reads them all."""
    state = detector.start()
    for event in events:
        verdict = state.update(event)
        if verdict is not None:
            return verdict
    return None


def most_severe(detector: Detector, candidate: Candidate) -> float | None:
    """What `Detector.measure` promises, from verdicts alone.

    The first verdict under the least threshold tells the first value; under a threshold that just
    lets that pass, the next verdict tells the next value beyond it, and so on.
    """
    cutoff = detector.known_cutoff
    events = list(token_events(candidate))
    worst = math.inf if cutoff.above else -math.inf
    limit, found = -worst, None
    while True:
        # Unchecked: an infinite threshold is no option that a user may set.
        verdict = read(detector.model_copy(update={cutoff.option: limit}), events)
        if verdict is None:
            return found
        value = verdict.value
        if not cutoff.beyond(value, limit) or value == worst:
            name = detector.kind or type(detector).__name__
            raise DetectorError(
                f"detector {name!r}: it fired at the value {value!r} with the threshold {limit!r}, "
                "which it should not; let `Verdict.value` be what is compared, or override "
                "`measure`"
            )
        found = value
        limit = math.nextafter(value, worst) if cutoff.inclusive else value

"""Detector: reads a candidate while it is generated and may abort it.

Law: detection is online and causal. The verdict at position e depends on tokens <= e only, and on
the context that the candidate continues.

A detector with a `cutoff` can be calibrated: it says which of its options is the threshold, and
`measure` gives the value of a whole candidate that decides, wherever the threshold stands.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, Self

from kvrescue.errors import DetectorError
from kvrescue.options import Options
from kvrescue.types import Candidate, Context, StopReason, Verdict

__all__ = ["Cutoff", "Detector", "DetectorState", "Source", "TokenEvent", "tokens_read"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token as a detector sees it."""

    token_id: int
    """In the policy's tokenizer."""
    text: str
    """Characters that this token completed ("" while a multi-byte character is incomplete)."""
    entropy: float
    """Entropy in nats of the model's next-token distribution that the token was drawn from."""


def tokens_read(candidate: Candidate) -> int:
    """How many of a candidate's tokens a detector is shown: all but EOS."""
    return candidate.n_tokens - (candidate.stop is StopReason.EOS and candidate.n_tokens > 0)


@dataclass(frozen=True, slots=True)
class Source:
    """What the engine that feeds a detector can deliver, so that dead thresholds are refused.

    `entropy` is "raw" (full vocabulary, before temperature and truncation: ceiling
    ln(vocab_size)), "processed" or "top" (over at most `support` tokens: ceiling ln(support)), or
    "none" when the engine delivers no entropy at all.
    """

    vocab_size: int
    """Tokens that can be drawn."""
    max_step_tokens: int
    """Tokens of a step at most."""
    entropy: str = "raw"
    """What distribution it is of; see above."""
    support: int | None = None
    """Tokens that a truncated entropy is over; None for the vocabulary."""


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Which option of a detector is its threshold, and on which side of it the detector fires."""

    option: str = "threshold"
    above: bool = True
    """Fires at values above it; else at values below."""
    inclusive: bool = False
    """Fires at the threshold itself, too."""
    unit: str = ""

    def beyond(self, value: float, threshold: float) -> bool:
        """Whether a candidate of this value is aborted."""
        if value == threshold:
            return self.inclusive
        return value > threshold if self.above else value < threshold

    def severity(self, value: float) -> float:
        """The value, or its negative: grows with what is aborted first."""
        return value if self.above else -value


class DetectorState(abc.ABC):
    """Running state for one candidate."""

    @abc.abstractmethod
    def update(self, event: TokenEvent) -> Verdict | None:
        """Read the next token; a verdict aborts the candidate. Not called after a verdict."""


class Detector(Options, abc.ABC):
    """Frozen options of a detector; `start()`, or `start_in(context)`, gives the state for one
    candidate."""

    kind: ClassVar[str] = ""
    """The name it is registered under; becomes `Verdict.detector`."""
    cutoff: ClassVar[Cutoff | None] = None
    """What calibration changes; None: nothing."""

    @abc.abstractmethod
    def start(self) -> DetectorState:
        """The state for one candidate of which nothing else is known."""

    def start_in(self, context: Context) -> DetectorState:
        """The state for one candidate that continues `context`; what a run calls.

        Override it to compare a candidate with the question or with the committed steps, whichever
        proposer they came from (`context.steps[i].text`). It is called for every candidate: keep
        it quick, and keep nothing of it in the detector.
        """
        return self.start()

    def measure(self, candidate: Candidate) -> float | None:  # optional hook
        """The most severe value that is compared with the threshold, were it never to fire.

        Law: whatever the threshold, the detector ends this candidate exactly if `cutoff.beyond`
        says so of this value. As it stands the value is found by replaying the candidate with
        thresholds that rise from verdict to verdict, which needs nothing but a `cutoff` and a
        `Verdict.value` that was compared; a detector that knows its values is quicker.

        Args:
            candidate: read to its end, without detectors.

        Returns:
            None where nothing is compared: the candidate is too short.

        Raises:
            DetectorError: there is no `cutoff`, or the verdicts do not tell what was compared.
        """
        from kvrescue.detectors.replay import most_severe

        return most_severe(self, candidate)

    def at(self, threshold: float) -> Self:
        """The same detector with another threshold.

        Raises:
            ConfigError: it cannot be that.
            DetectorError: there is no `cutoff`.
        """
        return type(self)(**{**dict(self), self.known_cutoff.option: threshold})

    @property
    def known_cutoff(self) -> Cutoff:
        """The `cutoff`; DetectorError where there is none."""
        if self.cutoff is None:
            name = self.kind or type(self).__name__
            raise DetectorError(
                f"detector {name!r} cannot be calibrated: its class has no `cutoff` that says "
                "which option is the threshold"
            )
        return self.cutoff

    @property
    def threshold_now(self) -> float:
        """What the option of the `cutoff` is set to."""
        value: float = getattr(self, self.known_cutoff.option)
        return value

    def check(self, source: Source) -> None:  # optional hook
        """Raise `DetectorError` when this detector can never fire on `source`."""

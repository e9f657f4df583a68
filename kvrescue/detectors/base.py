"""Detector: reads a candidate while it is generated and may abort it.

Law: detection is online and causal. The verdict at position e depends on tokens <= e only, and on
the context that the candidate continues.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

from kvrescue.options import Options
from kvrescue.types import Context, Verdict

__all__ = ["Detector", "DetectorState", "Source", "TokenEvent"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token as a detector sees it."""

    token_id: int
    text: str
    """Characters that this token completed ("" while a multi-byte character is incomplete)."""
    entropy: float
    """Entropy in nats of the model's next-token distribution that the token was drawn from."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the engine that feeds a detector can deliver, so that dead thresholds are refused.

    `entropy` is "raw" (full vocabulary, before temperature and truncation: ceiling
    ln(vocab_size)), "processed" or "top" (over at most `support` tokens: ceiling ln(support)), or
    "none" when the engine delivers no entropy at all.
    """

    vocab_size: int
    max_step_tokens: int
    entropy: str = "raw"
    support: int | None = None


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

    def check(self, source: Source) -> None:  # optional hook
        """Raise `DetectorError` when this detector can never fire on `source`."""

"""Detector: reads a candidate while it is generated and may abort it.

Law: detection is online and causal. The verdict at position e depends on tokens <= e only.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

from kvrescue.options import Options
from kvrescue.types import Verdict

__all__ = ["Detector", "DetectorState", "Source", "TokenEvent"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token as a detector sees it."""

    token_id: int
    """In the policy's tokenizer."""
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
    """Tokens that can be drawn."""
    max_step_tokens: int
    """Tokens of a step at most."""
    entropy: str = "raw"
    """What distribution it is of; see above."""
    support: int | None = None
    """Tokens that a truncated entropy is over; None for the vocabulary."""


class DetectorState(abc.ABC):
    """Running state for one candidate."""

    @abc.abstractmethod
    def update(self, event: TokenEvent) -> Verdict | None:
        """Read the next token; a verdict aborts the candidate. Not called after a verdict."""


class Detector(Options, abc.ABC):
    """Frozen options of a detector; `start()` gives the state for one candidate."""

    kind: ClassVar[str] = ""
    """The name it is registered under; becomes `Verdict.detector`."""

    @abc.abstractmethod
    def start(self) -> DetectorState:
        """A new state, for one candidate."""

    def check(self, source: Source) -> None:  # optional hook
        """Raise `DetectorError` when this detector can never fire on `source`."""

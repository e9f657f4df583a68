"""Degeneration: which wrong trajectories count as runaways.

The paper counts a wrong trajectory with at least 256 committed steps, "used to identify
context-length runaways". With its limits (1024 steps, 4096 tokens of context) that many steps fit
when they have 16 tokens on average. Where the limits leave no room for 256 such steps, as for the
tiny trio with its 256 tokens, no runaway could reach the number; there a runaway is told by where
it ends: a wrong trajectory that was cut off by a limit (of tokens, context or steps) instead of
ending by itself. A smaller number of steps would be no substitute: the trio's right solutions have
13 to 17 steps of some 8 tokens, so that a 256-token runaway is but twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from kvrescue.evaluation.runs.record import Record
from kvrescue.rules import Limits
from kvrescue.types import SolutionStop

__all__ = ["PAPER_STEPS", "DegenerationRule", "cut_off"]

PAPER_STEPS: Final = 256
_TOKENS_PER_STEP: Final = 16
"""4096 tokens of context over 256 steps."""
_CUT: Final = (SolutionStop.CONTEXT, SolutionStop.STEPS)


def cut_off(record: Record) -> bool:
    """Whether a wrong trajectory was ended by a limit."""
    return not record.correct and record.stop in _CUT


@dataclass(frozen=True)
class DegenerationRule:
    """What counts, for a configuration's limits."""

    steps: int | None
    """Committed steps from which on a wrong trajectory counts; None: where it was cut off."""

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """The paper's number where the limits leave room for it."""
        tokens = min(limits.max_output_tokens or limits.max_context, limits.max_context)
        room = tokens >= PAPER_STEPS * _TOKENS_PER_STEP and limits.max_steps >= PAPER_STEPS
        return cls(PAPER_STEPS if room else None)

    def __call__(self, record: Record) -> bool:
        if self.steps is None:
            return cut_off(record)
        return not record.correct and record.steps >= self.steps

    def describe(self) -> str:
        """As a sentence under a table."""
        if self.steps is not None:
            return f"Degen.: wrong trajectories with at least {self.steps} committed steps."
        return (
            "Degen.: wrong trajectories that a limit cut off; the paper's criterion (wrong, with "
            f"at least {PAPER_STEPS} committed steps) needs limits that leave room for so many "
            f"steps of {_TOKENS_PER_STEP} tokens, and this run's do not."
        )

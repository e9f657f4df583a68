"""Options of the replayed parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from pydantic import Field

from kvrescue.policies.base import PolicySpec
from kvrescue.scorers.base import ScorerSpec

if TYPE_CHECKING:
    from kvrescue.replay.policy import ReplayPolicy
    from kvrescue.replay.scorer import ReplayScorer

__all__ = ["AfterDivergence", "ReplayPolicySpec", "ReplayScorerSpec", "Verdicts"]

Verdicts: TypeAlias = Literal["anew", "recorded"]
"""Whether detectors read the recorded tokens anew, or recorded verdicts stay."""
AfterDivergence: TypeAlias = Literal["error", "stop"]
"""What becomes of a trajectory that went where nothing was recorded."""


class ReplayPolicySpec(PolicySpec):
    """`kind: replay` in a configuration; the fields are `ReplayPolicy`'s arguments."""

    kind: ClassVar[str] = "replay"

    trace: str = Field(min_length=1)
    """The recording: a file that `kvrescue solve --trace` or `kvrescue bench run` has written."""
    proposer: str | None = Field(default=None, min_length=1)
    """Whose candidates are given back; None: those of the proposer's own name."""
    verdicts: Verdicts = "anew"
    """`anew`: the proposer's detectors read the recorded tokens; `recorded`: they do not, and every
    candidate keeps the verdict it had."""
    after_divergence: AfterDivergence = "error"
    """What is done when a step is needed that would follow from another one than was committed:
    `error`, or `stop`, which ends the trajectory as if its context were full."""

    def build(self) -> ReplayPolicy:
        from kvrescue.replay.policy import ReplayPolicy

        return ReplayPolicy(**{name: getattr(self, name) for name in type(self).model_fields})


class ReplayScorerSpec(ScorerSpec):
    """`kind: replay` in a configuration; the field is `ReplayScorer`'s argument."""

    kind: ClassVar[str] = "replay"

    trace: str = Field(min_length=1)
    """The recording: a file that `kvrescue solve --trace` or `kvrescue bench run` has written."""

    def build(self) -> ReplayScorer:
        from kvrescue.replay.scorer import ReplayScorer

        return ReplayScorer(self.trace)

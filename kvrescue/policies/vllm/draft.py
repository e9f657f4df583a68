"""VLLMDraft: a candidate while vLLM decodes it; fed by the scheduler, token by token."""

from __future__ import annotations

import math

from kvrescue.engine.candidate import GrowingCandidate
from kvrescue.errors import COMPONENT_FAILURES, NonFiniteLogitsError, PolicyError
from kvrescue.types import StopReason

__all__ = ["VLLMDraft"]


class VLLMDraft(GrowingCandidate):
    """A candidate whose failures wait for whoever waits for it, instead of being raised."""

    error: BaseException | None = None
    """A failure of the model or of a detector; it ends the candidate, too."""

    @property
    def ended(self) -> bool:
        return self.stop is not None or self.error is not None

    @property
    def adoptable(self) -> bool:
        """Whether its cache may become the trajectory's; aborted candidates are never held."""
        return self.error is None and self.stop not in (None, StopReason.ABORTED)

    def feed(self, token_id: int, entropy: float | None) -> bool:
        """`push` for the scheduler: raises nothing; returns whether the candidate ends here."""
        try:
            self.push(token_id, _checked(entropy))
        except COMPONENT_FAILURES as error:  # this proposal's alone, not the engine's step
            self.error = error
        return self.ended


def _checked(entropy: float | None) -> float:
    if entropy is None:
        raise PolicyError(
            "vLLM delivered a token without its entropy: the model runner is not kvrescue's"
        )
    if not math.isfinite(entropy):
        raise NonFiniteLogitsError(
            "the model returned NaN or infinite logits; check the checkpoint and the dtype"
        )
    return entropy

"""VLLMDraft: a candidate while vLLM decodes it; fed by the scheduler, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvrescue.detectors.bank import DetectorBank
from kvrescue.detectors.base import Detector, TokenEvent
from kvrescue.engine.text import StepText, TokenText
from kvrescue.errors import NonFiniteLogitsError, PolicyError
from kvrescue.types import StopReason, Verdict

__all__ = ["VLLMDraft"]


class VLLMDraft:
    """Tokens, entropies and text of one candidate, and the reason why it ended.

    The order of the checks is the torch engine's: detectors read a token before any other reason
    to stop, the one that completes the step included.
    """

    def __init__(
        self,
        index: int,
        seed: int,
        *,
        pieces: TokenText,
        eos: frozenset[int],
        separator: str,
        carry: str,
        detectors: Sequence[Detector],
        cap: int,
        cap_reason: StopReason,
    ) -> None:
        self.index = index
        self.seed = seed
        self.token_ids: list[int] = []
        self.entropies: list[float] = []
        self.text = StepText(pieces, separator, carry)
        self.verdict: Verdict | None = None
        self.stop: StopReason | None = None
        self.error: Exception | None = None
        """A failure of the model or of a detector; it ends the candidate, too."""
        self._bank = DetectorBank(detectors)
        self._eos = eos
        self._cap = cap
        self._cap_reason = cap_reason

    @property
    def ended(self) -> bool:
        return self.stop is not None or self.error is not None

    @property
    def adoptable(self) -> bool:
        """Whether its cache may become the trajectory's; aborted candidates are never held."""
        return self.error is None and self.stop not in (None, StopReason.ABORTED)

    def push(self, token_id: int, entropy: float | None) -> bool:
        """Append a sampled token; returns whether the candidate ends here.

        Nothing is raised: a failure is kept in `error`, for whoever waits for the candidate.
        """
        try:
            self._push(token_id, entropy)
        except Exception as error:  # belongs to this proposal alone, not to the engine's step
            self.error = error
        return self.ended

    def _push(self, token_id: int, entropy: float | None) -> None:
        if entropy is None:
            raise PolicyError(
                "vLLM delivered a token without its entropy: the model runner is not kvrescue's"
            )
        if not math.isfinite(entropy):
            raise NonFiniteLogitsError(
                "the model returned NaN or infinite logits; check the checkpoint and the dtype"
            )
        self.token_ids.append(token_id)
        self.entropies.append(entropy)
        is_eos = token_id in self._eos
        new, boundary = ("", False) if is_eos else self.text.push(token_id)
        if not is_eos:
            self.verdict = self._bank.update(TokenEvent(token_id, new, entropy))
        if self.verdict is not None:
            self.stop = StopReason.ABORTED
        elif is_eos:
            self.stop = StopReason.EOS
        elif boundary:
            self.stop = StopReason.SEPARATOR
        elif len(self.token_ids) >= self._cap:
            self.stop = self._cap_reason

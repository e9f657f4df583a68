"""GrowingCandidate: what a candidate is while an engine decodes it, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from kvrescue.detectors.bank import DetectorBank
from kvrescue.detectors.base import Detector, TokenEvent
from kvrescue.engine.text import StepText, TokenText
from kvrescue.types import StopReason, Verdict

__all__ = ["GrowingCandidate"]


class GrowingCandidate:
    """Tokens, entropies and text of one candidate, and the reason why it ended."""

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
        self.char_ends: list[int] = []
        self.text = StepText(pieces, separator, carry)
        self.verdict: Verdict | None = None
        self.stop: StopReason | None = None
        self._bank = DetectorBank(detectors) if detectors else None
        self._eos = eos
        self._cap = cap
        self._cap_reason = cap_reason

    def push(self, token_id: int, entropy: float) -> StopReason | None:
        """Append a sampled token; detectors read it before any other reason to stop.

        A token that completes the step is screened, too: a loop may end in a separator.
        """
        self.token_ids.append(token_id)
        self.entropies.append(entropy)
        self.char_ends.append(self.char_ends[-1] if self.char_ends else 0)
        if token_id in self._eos:
            self.stop = StopReason.EOS
            return self.stop
        new, boundary = self.text.push(token_id)
        self.char_ends[-1] += len(new)
        if self._bank is not None:
            self.verdict = self._bank.update(TokenEvent(token_id, new, entropy))
        if self.verdict is not None:
            self.stop = StopReason.ABORTED
        elif boundary:
            self.stop = StopReason.SEPARATOR
        elif len(self.token_ids) >= self._cap:
            self.stop = self._cap_reason
        return self.stop

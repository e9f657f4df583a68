"""DetectorBank: what an engine feeds, one per candidate."""

from __future__ import annotations

from collections.abc import Sequence

from kvrescue.detectors.base import Detector, TokenEvent
from kvrescue.errors import DetectorError
from kvrescue.types import Verdict

__all__ = ["DetectorBank"]


class DetectorBank:
    """The states of several detectors that read the same candidate.

    Every detector reads every token, the one that ends the candidate included. Of several
    verdicts at one position the first in the order of `detectors` is returned.
    """

    __slots__ = ("_open", "_states", "_verdict")

    def __init__(self, detectors: Sequence[Detector] = ()) -> None:
        self._states = tuple(detector.start() for detector in detectors)
        self._verdict: Verdict | None = None
        self._open = True

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that ended the candidate, None while there is none."""
        return self._verdict

    def update(self, event: TokenEvent) -> Verdict | None:
        """Read the next token; after a verdict or an error there is no next token."""
        if not self._open:
            raise RuntimeError(
                "the detectors of this candidate have ended it"
                + (f" ({self._verdict.reason})" if self._verdict else " with an error")
                + "; start a new bank for a new candidate"
            )
        self._open = False
        first: Verdict | None = None
        for state in self._states:
            verdict = state.update(event)
            if verdict is not None and not isinstance(verdict, Verdict):
                raise DetectorError(
                    f"{type(state).__name__}.update returned {verdict!r}; return a Verdict to end "
                    "the candidate, or None"
                )
            if first is None:
                first = verdict
        self._verdict = first
        self._open = first is None
        return first

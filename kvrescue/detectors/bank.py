"""DetectorBank: what an engine feeds, one per candidate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from kvrescue.detectors.base import Detector, TokenEvent
from kvrescue.errors import DetectorError, KVRescueError, PolicyError, located
from kvrescue.types import Verdict

__all__ = ["DetectorBank"]


class DetectorBank:
    """The states of several detectors that read the same candidate.

    Every detector reads every token, the one that ends the candidate included. Of several
    verdicts at one position the first in the order of `detectors` is returned.

    Raises:
        DetectorError: a detector returns something else than a verdict or None.
        PolicyError: a detector fails; the cause is kept. An error of ours keeps its class.
    """

    __slots__ = ("_kinds", "_open", "_states", "_verdict")

    def __init__(self, detectors: Sequence[Detector] = ()) -> None:
        self._kinds = tuple(detector.kind or type(detector).__name__ for detector in detectors)
        states = []
        for kind, detector in zip(self._kinds, detectors, strict=True):
            with _named(kind):
                states.append(detector.start())
        self._states = tuple(states)
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
        for kind, state in zip(self._kinds, self._states, strict=True):
            with _named(kind):
                verdict = state.update(event)
            if verdict is not None and not isinstance(verdict, Verdict):
                raise DetectorError(
                    f"detector {kind!r}: {type(state).__name__}.update returned {verdict!r}; "
                    "return a Verdict to end the candidate, or None"
                )
            if first is None:
                first = verdict
        self._verdict = first
        self._open = first is None
        return first


@contextlib.contextmanager
def _named(kind: str) -> Iterator[None]:
    """What a detector raises, as an error of ours that names it."""
    try:
        yield
    except KVRescueError as error:
        raise located(f"detector {kind!r}", error) from error.__cause__
    except Exception as error:
        raise PolicyError(f"detector {kind!r} failed: {type(error).__name__}: {error}") from error

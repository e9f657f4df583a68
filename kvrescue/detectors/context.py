"""Where a detector meets the committed steps: bound to the context before candidates are drawn.

The selector binds, once a round, so that policies and engines need not know: to them a detector is
something with `start()`.
"""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr

from kvrescue.detectors.base import Detector, DetectorState, Source
from kvrescue.types import Context

__all__ = ["in_context"]


def in_context(detector: Detector, context: Context) -> Detector:
    """What to draw the next candidates of `context` with: its `start()` is
    `detector.start_in(context)`.

    A detector that does not override `start_in` is returned as it is.
    """
    if type(detector).start_in is Detector.start_in:
        return detector
    return _InContext(detector, context)


class _InContext(Detector):
    """Candidates of one context, for a detector that asks for it."""

    _detector: Detector = PrivateAttr()
    _context: Context = PrivateAttr()

    def __init__(self, detector: Detector, context: Context) -> None:
        super().__init__()
        self._detector, self._context = detector, context

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The name of the detector that is bound."""
        return self._detector.kind or type(self._detector).__name__

    def start(self) -> DetectorState:
        return self._detector.start_in(self._context)

    def check(self, source: Source) -> None:
        self._detector.check(source)

    def __repr_args__(self) -> Any:
        yield None, self._detector

"""The conformance kit: the laws of a component, as one call in its author's tests.

    from kvrescue.testing import check_evictor

    def test_mine():
        check_evictor(Mine(budget=16, window=4))

Each check searches for inputs that break a law, makes the one it finds as small as it can and
raises `LawBroken`, whose text says what it means for a run (`docs/testing.md` lists the laws).
Needs the extra `[testing]`; imports torch only where an evictor is checked.
"""

from __future__ import annotations

from typing import Final

from kvrescue.registry import missing_package

try:
    import hypothesis  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package("kvrescue.testing", error) from error

from kvrescue.testing.detectors import DETECTOR_LAWS, check_detector
from kvrescue.testing.evictors import EVICTOR_LAWS, check_evictor
from kvrescue.testing.laws import Law, LawBroken

__all__ = [
    "LAWS",
    "Law",
    "LawBroken",
    "check_detector",
    "check_evictor",
]

LAWS: Final = {"evictor": EVICTOR_LAWS, "detector": DETECTOR_LAWS}
"""Every law, by what is checked."""

"""Detectors read a candidate token by token while it is generated and may end it.

A detector sees one candidate from its first token, and the committed steps if it overrides
`start_in`. The built-in ones do not: a trajectory that repeats itself *across* steps, each of them
short and harmless alone, is invisible to all of them (`examples/loop_detector.py` sees it).
"""

from kvrescue.detectors.bank import DetectorBank
from kvrescue.detectors.base import Cutoff, Detector, DetectorState, Source, TokenEvent
from kvrescue.detectors.context import in_context
from kvrescue.detectors.entropy import EntropyDetector
from kvrescue.detectors.gzip import GzipDetector
from kvrescue.detectors.ngram import NgramDetector

__all__ = [
    "Cutoff",
    "Detector",
    "DetectorBank",
    "DetectorState",
    "EntropyDetector",
    "GzipDetector",
    "NgramDetector",
    "Source",
    "TokenEvent",
    "in_context",
]

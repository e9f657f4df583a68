"""Replay: recorded trajectories run again without models.

A trace is the recording. `ReplayPolicy` gives its candidates back and `ReplayScorer` its scores, in
any composition; detectors read the recorded tokens anew. `replay` does it for a whole trace.
"""

from __future__ import annotations

from kvrescue.replay.compare import Replayed, VerdictChange
from kvrescue.replay.policy import ReplayPolicy
from kvrescue.replay.recording import Recorded, Recording
from kvrescue.replay.run import replay
from kvrescue.replay.scorer import ReplayScorer
from kvrescue.replay.specs import ReplayPolicySpec, ReplayScorerSpec

__all__ = [
    "Recorded",
    "Recording",
    "ReplayPolicy",
    "ReplayPolicySpec",
    "ReplayScorer",
    "ReplayScorerSpec",
    "Replayed",
    "VerdictChange",
    "replay",
]

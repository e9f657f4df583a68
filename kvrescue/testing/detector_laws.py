"""The laws of a detector (design, law 8: online and causal)."""

from __future__ import annotations

from typing import Final

from kvrescue.testing.components import OPTIONS
from kvrescue.testing.laws import Law, Laws

__all__ = ["DETECTOR_LAWS"]

RUNS: Final = Law(
    "runs",
    "A state is started in every context, and reads every token, without an error.",
    "One odd token, or the first step that is committed, ends the run with a PolicyError.",
    "Empty text, text of several characters, emoji and a repeated token id all occur; a context "
    "may have no steps.",
)
FIRES: Final = Law(
    "fires",
    "Some stream of tokens makes the detector fire.",
    "Nothing at all is known of a detector that never fires, and it never aborts anything.",
    "Check a configuration with small windows and low thresholds, or give `fires_on=`, what must "
    'make it fire: `fires_on=["wait ", "wait ", "wait "]`, one text per token, or a list of '
    "TokenEvent where ids or entropies matter; and `context=`, the committed steps, where it needs "
    "them.",
)
VERDICT: Final = Law(
    "verdict",
    "A verdict names its detector (`kind`) and a reason, with a finite value and threshold and, "
    "where it has one, a char_position within the characters read.",
    "Reports and traces count the verdict for no detector, or show numbers that mean nothing.",
    "Return Verdict(detector=self.kind, reason=..., position=..., value=..., threshold=...).",
)
SIDE: Final = Law(
    "threshold-side",
    "All verdicts lie on one side of their threshold: always at or above it, or always at or "
    "below.",
    "Thresholds are calibrated on recorded values: a verdict on the other side says that value "
    "and threshold are not what was compared.",
    "Report the value that was compared, and the threshold it was compared with.",
)
POSITION: Final = Law(
    "position",
    "A verdict's position is the number of tokens read when it was returned (1 = the first).",
    "The aborted candidate is cut at the wrong token, and its entropies and text no longer agree.",
    "Count every call of `update`, the first one as 1, and report the count.",
)
CAUSAL: Final = Law(
    "causal",
    "A verdict at position e follows from the first e tokens alone.",
    "Online, the verdict comes later than it claims, or depends on how far a candidate happened "
    "to be generated: offline calibration then promises what a run cannot keep.",
    "Fire at the token that completes the evidence, and report that token's position.",
)
DETERMINISTIC: Final = Law(
    "deterministic",
    "The same tokens give the same verdict.",
    "A seed no longer says which candidates survive, and a resumed run differs.",
    "Use no random numbers and no clock, and keep no memory in the class or the module.",
)
FRESH: Final = Law(
    "fresh-start",
    "`start()` and `start_in(context)` give a new state, which knows nothing of candidates that "
    "were read before.",
    "A candidate is aborted for what an earlier one wrote.",
    "Create everything that changes in the state's `__init__`, nothing of it in the detector, the "
    "class or the module.",
)
INDEPENDENT: Final = Law(
    "independent-states",
    "States of candidates that are read side by side do not see each other, in one context or in "
    "several.",
    "Candidates are generated in parallel: one is aborted for what its sibling wrote, and results "
    "change with N.",
    "Keep counters and buffers in the state (`self` of the DetectorState), not in the detector, "
    "the class, the module or a mutable default argument.",
)
SPLITS: Final = Law(
    "token-splits",
    "A detector of text (one whose verdicts have a char_position) fires at the same character, "
    "with the same value, however the text is split into tokens.",
    "Another tokenizer, or a server that streams several characters at once, moves the verdict: "
    "thresholds do not carry over.",
    "Collect the characters, and evaluate at fixed character positions instead of once per token.",
)
READ_ONLY: Final = Law(
    "read-only",
    "Reading changes neither the tokens nor the detector.",
    "Other detectors of the same candidate read something else than was generated.",
    "Keep what you need in the state.",
)

DETECTOR_LAWS: Final[Laws] = (
    OPTIONS,
    RUNS,
    FIRES,
    DETERMINISTIC,
    FRESH,
    VERDICT,
    SIDE,
    POSITION,
    CAUSAL,
    INDEPENDENT,
    SPLITS,
    READ_ONLY,
)
"""What `check_detector` searches for, in this order."""

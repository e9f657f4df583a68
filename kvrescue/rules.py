"""The rules of selection as pure functions: who may be chosen, and who is.

They are Algorithm 1's lines 6 to 8 for any number of proposers, plus what the paper leaves open:
ties, and steps that are empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field

from kvrescue.detectors.base import Detector
from kvrescue.errors import PolicyError
from kvrescue.events import within_json
from kvrescue.options import Options
from kvrescue.sampling import Sampling
from kvrescue.types import Candidate, StopReason

__all__ = [
    "as_data",
    "Limits",
    "OnError",
    "WhenAllFlagged",
    "best",
    "check_candidates",
    "is_selectable",
]

OnError: TypeAlias = Literal["raise", "degrade"]
"""`raise` ends the run with the error; `degrade` goes on without the failed part and records it."""

WhenAllFlagged: TypeAlias = Literal["stop", "redraw"]
"""What to do when detectors aborted every candidate of a round (possible only when every proposer
is screened): end the trajectory, or draw again from the same context with new seeds. A flagged
candidate is never committed."""


class Limits(Options):
    """Where a trajectory ends at the latest. Defaults are the paper's."""

    max_steps: int = Field(default=1024, ge=1)
    """Committed steps."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """L: committed tokens; None means as many as fit the context."""
    max_context: int = Field(default=4096, ge=1)
    """Tokens of prompt and committed steps, in each policy's own tokenizer."""
    max_empty_steps: int = Field(default=3, ge=1)
    """Rounds in a row without a selectable candidate that end the trajectory."""


def is_selectable(candidate: Candidate) -> bool:
    """Whether a candidate may be committed.

    A flagged one never. A blank one only when it ends with EOS: it then means "I am done", while a
    blank step that goes on would be followed by another one for ever.
    """
    if candidate.verdict is not None:
        return False
    return not candidate.is_empty or candidate.stop is StopReason.EOS


def check_candidates(
    found: Sequence[Candidate], name: str, n: int, *, screened: bool, max_tokens: int
) -> list[Candidate]:
    """What a view returned, in order of index, once it keeps the contract of `View.propose`.

    Raises:
        PolicyError: it does not; the message says how.
    """
    if sorted(candidate.index for candidate in found) != list(range(n)):
        indices = [candidate.index for candidate in found]
        raise PolicyError(
            f"proposer {name!r}: asked for candidates 0 to {n - 1}, its policy returned {indices}"
        )
    for candidate in found:
        who = f"proposer {name!r}: candidate {candidate.index}"
        if candidate.policy != name:
            raise PolicyError(f"{who} is labelled {candidate.policy!r}")
        if (candidate.verdict is not None) != (candidate.stop is StopReason.ABORTED):
            raise PolicyError(
                f"{who} stopped for {candidate.stop.value!r} with verdict {candidate.verdict!r}: "
                "an aborted candidate has a verdict, and no other has"
            )
        if candidate.verdict is not None and not screened:
            raise PolicyError(f"{who} was flagged, but no detector screens this proposer")
        if candidate.n_tokens > max_tokens:
            raise PolicyError(
                f"{who} has {candidate.n_tokens} tokens where at most {max_tokens} were asked for"
            )
    return sorted(found, key=lambda candidate: candidate.index)


def as_data(
    proposers: Mapping[str, tuple[int, Sequence[Detector]]],
    sampling: Sampling,
    limits: Limits,
    **choices: bool | str,
) -> dict[str, Any]:
    """The rules of a run as configuration data; with policies and a scorer added, `load_config`
    reads them.

    Args:
        proposers: number of candidates and detectors, by name.
        sampling: how candidates are drawn.
        limits: where a trajectory ends.
        choices: `stop_at_answer`, `when_all_flagged` and what is done on failures.
    """
    sections = {
        name: {"candidates": n, "detectors": [_section(detector) for detector in detectors]}
        for name, (n, detectors) in proposers.items()
    }
    return {
        "proposers": sections,
        "sampling": within_json(sampling.model_dump(mode="json")),
        "limits": within_json(limits.model_dump(mode="json")),
        **choices,
    }


def _section(detector: Detector) -> Any:
    kind = detector.kind or type(detector).__name__
    try:
        return within_json({"kind": kind, **detector.model_dump(mode="json")})
    except (TypeError, ValueError):  # an option that is no plain data; its kind is
        return {"kind": kind}


def best(scores: Sequence[float | None]) -> int:
    """Place of the highest score; the earlier of equals; the first place when none is valid."""
    valid = [(score, -place) for place, score in enumerate(scores) if score is not None]
    return -max(valid)[1] if valid else 0

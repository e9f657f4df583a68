"""Values that travel between the layers: plain frozen data, no behaviour beyond derived facts.

Vocabulary: a *step* ends at the separator, at EOS or at a limit; the *context* is the question
plus the committed steps; a *candidate* is one proposed step.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "SEPARATOR",
    "CacheStats",
    "Candidate",
    "CommittedStep",
    "Context",
    "Degradation",
    "Question",
    "Solution",
    "SolutionStop",
    "StopReason",
    "TokenUse",
    "Verdict",
    "new_trajectory_id",
]

SEPARATOR = "\n\n"
"""The default step separator (paper, section "Stepwise interleaving")."""

_trajectories = itertools.count(1)


def new_trajectory_id() -> int:
    """A number no other trajectory of this process has; scorers key their kept state by it."""
    return next(_trajectories)


class StopReason(StrEnum):
    """Why the generation of a candidate ended."""

    SEPARATOR = "separator"
    """The step is complete."""
    EOS = "eos"
    """The model has nothing to add to the trajectory."""
    LENGTH = "length"
    """The per-step token limit."""
    CONTEXT = "context"
    """The trajectory's token limit or the model's context limit."""
    ABORTED = "aborted"
    """A detector fired; `Candidate.verdict` says which."""


class SolutionStop(StrEnum):
    """Why a trajectory ended."""

    EOS = "eos"
    """The committed step ends with EOS."""
    ANSWER = "answer"
    """The committed step carries a final answer and the configuration ends there."""
    CONTEXT = "context"
    """The output or context token limit was reached."""
    STEPS = "steps"
    """The limit on the number of steps was reached."""
    EMPTY = "empty"
    """No selectable candidate for `max_empty_steps` rounds in a row."""
    FLAGGED = "flagged"
    """Every proposer is screened and every candidate was aborted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A detector's reason to abort a candidate."""

    detector: str
    """The kind of the detector."""
    reason: str
    """In words, with the figures."""
    position: int
    """Tokens of the candidate read when the detector fired (1 = at its first token)."""
    value: float
    """The measured value."""
    threshold: float
    """What it was compared with, in the same unit."""
    char_position: int | None = None
    """Characters of the candidate up to the firing window's end, for text detectors."""


@dataclass(frozen=True, slots=True)
class Question:
    """A problem to solve."""

    text: str
    """As the model is asked."""
    id: str = ""
    """Seeds depend on it. Left empty it becomes a hash of the text, so that two questions do not
    share their random numbers and one question always has the same."""

    def __post_init__(self) -> None:
        if not self.id and isinstance(self.text, str):
            encoded = self.text.encode(errors="surrogatepass")
            digest = hashlib.blake2b(encoded, digest_size=6).hexdigest()
            object.__setattr__(self, "id", digest)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One proposed step."""

    policy: str
    """Name of the proposer that drew it."""
    index: int
    """Position among that proposer's candidates of this step."""
    text: str
    """Decoded text as generated, separator included, EOS not."""
    token_ids: tuple[int, ...]
    """Token ids as generated, in the proposer's tokenizer, EOS included."""
    stop: StopReason
    """Why it ended."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer that `token_ids` belongs to."""
    entropies: tuple[float, ...] = ()
    """Entropy in nats of the raw next-token distribution, one per token."""
    verdict: Verdict | None = None
    """Why it was aborted; None unless it was."""
    seed: int = 0
    """What it was drawn with."""
    char_ends: tuple[int, ...] = ()
    """Characters of `text` that each token and those before it completed, one number per token;
    empty where they are not known. A replay cuts the text along them."""

    @property
    def is_empty(self) -> bool:
        """Whitespace only (an empty step is never selectable, unless it ends with EOS)."""
        return not self.text.strip()

    @property
    def n_tokens(self) -> int:
        """Tokens that were generated, EOS included."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Degradation:
    """Something failed and the run went on as configured; never silent."""

    where: str
    """`scorer` or the name of a proposer."""
    message: str
    """The error that was not raised."""


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A step of the trajectory with its provenance."""

    number: int
    """0-based position in the trajectory."""
    candidate: Candidate
    """The one that was chosen."""
    score: float | None
    """The winning score; None when the step was committed without a valid one."""
    candidates: tuple[Candidate, ...] = ()
    """All candidates of the round, in pool order, aborted ones included."""
    scores: tuple[float | None, ...] = ()
    """One per candidate; None for those that were not scored."""
    degradations: tuple[Degradation, ...] = ()
    """What failed in its round."""

    @property
    def text(self) -> str:
        """What was appended to the trajectory, separator included."""
        return self.candidate.text


@dataclass(frozen=True, slots=True)
class Context:
    """What every policy has agreed on: the question and the committed steps."""

    question: Question
    """What is to be solved."""
    steps: tuple[CommittedStep, ...] = ()
    """In order."""
    trajectory: int = field(default_factory=new_trajectory_id)
    """Process-wide id of the trajectory; equal ids mean one growing trajectory."""

    @property
    def text(self) -> str:
        """Concatenation of the committed steps."""
        return "".join(step.text for step in self.steps)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Audit of one view's KV cache."""

    logical_length: int = 0
    """Tokens of prompt and committed steps."""
    physical_length: int = 0
    """Entries held per layer and KV head now."""
    peak_physical: int = 0
    """Largest number of entries held per layer and KV head after an operation."""
    evictions: int = 0
    """How often the evictor fired on the trajectory's own state."""
    dropped: int = 0
    """Entries dropped per layer and KV head."""
    bound: int | None = None
    """B' = B + w (plus protected prompt) or None without an evictor."""


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Work of one proposer over a trajectory."""

    candidates: int = 0
    """How many it drew."""
    generated: int = 0
    """Tokens sampled, over all candidates."""
    aborted: int = 0
    """Candidates ended by a detector."""
    committed_steps: int = 0
    """How many of the trajectory's steps it wrote."""
    committed_tokens: int = 0
    """Tokens of those steps."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A finished trajectory with its accounting."""

    question: Question
    """What was asked."""
    steps: tuple[CommittedStep, ...]
    """The trajectory, in order."""
    stop: SolutionStop
    """Why it ended."""
    seed: int
    """Of the run."""
    answer: str | None = None
    """Content of the last closed `\\boxed{}`, None when there is none."""
    tokens: Mapping[str, TokenUse] = field(default_factory=dict)
    """By the name of the proposer."""
    caches: Mapping[str, CacheStats] = field(default_factory=dict)
    """By the name of the proposer, as they were at the end."""
    degradations: tuple[Degradation, ...] = ()
    """Everything that failed and did not end the run."""
    empty_rounds: int = 0
    """Rounds in which no candidate was selectable."""

    @property
    def text(self) -> str:
        """Concatenation of the committed steps."""
        return "".join(step.text for step in self.steps)

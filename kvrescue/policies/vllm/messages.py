"""What travels between the driver, the scheduler and the workers; plain data, no vLLM import.

driver -> scheduler: a `Ticket` per request, handed over in process; the request itself carries
only the ticket's name, in `SamplingParams.extra_args`. scheduler -> workers: one `StepMessage` on
every `SchedulerOutput` (it survives pickling). workers -> scheduler: one `Report` on every
`ModelRunnerOutput`. Workers never report lengths: the scheduler owns them (`Held`, `Due`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvrescue.evictors.audit import Audit

if TYPE_CHECKING:
    from kvrescue.policies.vllm.draft import VLLMDraft

__all__ = ["KEY", "Due", "Fork", "Ledger", "Report", "StepMessage", "Ticket", "ticket_name"]

KEY = "kvrescue"
"""Where our data lies: `extra_args[KEY]`, `additional_config[KEY]`, attributes of step objects."""


@dataclass(slots=True)
class Ledger(Audit):
    """Length and eviction counters of one sequence; the scheduler's record, copied by forks."""

    length: int = 0
    """Entries held per layer and KV head after the last operation."""

    def fed(self, tokens: int, keep: int, interval: int) -> int:
        """`tokens` were fed in one operation; returns how many entries then leave.

        `keep` is B' plus the protected prefix.
        """
        length = self.length + tokens
        dropped = length - keep if length >= keep + interval else 0
        self.length = length - dropped
        self.note(self.length, dropped)
        return dropped


@dataclass(slots=True)
class Ticket:
    """What the scheduler is to do with one request beyond decoding it."""

    name: str
    fork: str | None = None
    """State that the request starts from; it is copied, never changed."""
    hold: str | None = None
    """Name under which the request's cache is kept when it ends by itself."""
    keep_logits: bool = False
    """The state also keeps the logits that follow its last token (prompts, foreign steps)."""
    prefix: int = 0
    """Protected leading entries of a new sequence; a fork inherits its parent's."""
    draft: VLLMDraft | None = None
    """Decides after every token whether the request ends, and why."""

    @property
    def extra_args(self) -> dict[str, Any]:
        return {KEY: self.name}


def ticket_name(extra_args: dict[str, Any] | None) -> str | None:
    """The ticket that a request names, None for a request that is not ours."""
    name = (extra_args or {}).get(KEY)
    return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class Fork:
    """A request starts from a state in this step."""

    request: str
    state: str
    repeats: bool
    """Its one token is the state's last, whose entries and logits are known: its keys and values
    are written nowhere and the state's logits replace what the forward pass returns."""


@dataclass(frozen=True, slots=True)
class Due:
    """A sequence to evict from after this step's forward pass."""

    length: int
    """Entries it then holds, ..."""
    keep: int
    """... how many stay, ..."""
    prefix: int
    """... how many of those are protected leading ones, ..."""
    logical: int
    """... how many tokens it has seen, ..."""
    settled: int
    """... and how many of the entries an earlier eviction left: those are in no order, and their
    positions are noted; the others follow in the order of time, without a gap."""


@dataclass(slots=True)
class StepMessage:
    """Attached to a SchedulerOutput; applied by the workers in the order of the fields."""

    holds: list[tuple[str, str]] = field(default_factory=list)
    """(request, state): a request that ended in the step before is now that state."""
    forks: list[Fork] = field(default_factory=list)
    releases: list[str] = field(default_factory=list)
    """States that are no longer needed."""
    evicted: dict[str, int] = field(default_factory=dict)
    """By request, in its first step and whenever it changed: logical minus physical length before
    this step's forward pass."""
    captures: dict[str, int] = field(default_factory=dict)
    """By request: how many of this step's last tokens an eviction may want the queries of."""
    due: dict[str, Due] = field(default_factory=dict)
    """Requests to evict from after it."""
    keep_logits: list[str] = field(default_factory=list)
    """Requests whose logits of this step are kept for the state they become."""


@dataclass(slots=True)
class Report:
    """Attached to a ModelRunnerOutput."""

    entropies: dict[str, float] = field(default_factory=dict)
    """By request: entropy in nats of its raw float32 logits."""
    dropped: dict[str, int] = field(default_factory=dict)
    """By request: entries per layer and KV head that eviction really dropped."""

"""Records: what a run keeps of one problem in one setting, as one JSON line.

Everything the tables need is here, so that they are made without models: counts per proposer, the
work in tokens and attended entries (for FLOPs), the verdicts of the grading rules, what failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError

from kvrescue.errors import ConfigError
from kvrescue.types import Degradation

__all__ = ["SCHEMA", "Failure", "Record", "Use", "parse_record", "record_line"]

SCHEMA: Final = 1
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""


@dataclass(frozen=True, slots=True)
class Use:
    """One proposer's work on one problem."""

    candidates: int = 0
    """How many it drew."""
    generated: int = 0
    """Tokens sampled, over all candidates."""
    aborted: int = 0
    """Candidates ended by a detector."""
    aborted_tokens: int = 0
    """Tokens sampled for aborted candidates; part of `generated`."""
    committed_steps: int = 0
    """How many of the trajectory's steps it wrote."""
    committed_tokens: int = 0
    """Of the steps it wrote."""
    encoded: int = 0
    """Tokens of others' steps that it read in one forward pass (re-base)."""
    prompt: int = 0
    """Tokens of its prompt."""
    attended: int = 0
    """Cache entries attended to, summed over generated and encoded tokens (per layer; the prompt's
    own pass left out). An evicted cache counts as at most `bound` entries."""
    logical: int = 0
    """Tokens of prompt and committed steps at the end."""
    peak_physical: int = 0
    """Most entries held per layer and KV head after an operation."""
    evictions: int = 0
    """Evictions on the trajectory's own state."""
    bound: int | None = None
    """B' of its cache; None without an evictor."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a problem has no solution; it is tried again when the run is resumed."""

    type: str
    """The name of the error's class."""
    message: str
    """What it said."""


@dataclass(frozen=True, slots=True)
class Record:
    """One problem in one setting."""

    setting: str
    """Key of the setting, see `Setting.key`."""
    problem: str
    """Id of the problem."""
    digest: str
    """Of question and gold answer: a changed problem is another one."""
    gold: str
    """The right answer."""
    answer: str | None = None
    """What the solution answers; None when there is no closed last box."""
    correct: bool = False
    """By the problem set's own rule."""
    rules: Mapping[str, bool | None] = field(default_factory=dict)
    """Verdict of every grading rule; None where it ran out of time."""
    stop: str = ""
    """Why the trajectory ended (`SolutionStop`)."""
    steps: int = 0
    """Committed steps."""
    output_tokens: int = 0
    """Committed tokens, each in its author's tokenizer."""
    sources: tuple[str, ...] = ()
    """Who wrote each committed step."""
    uses: Mapping[str, Use] = field(default_factory=dict)
    """By proposer."""
    scored: int = 0
    """Candidates that the scorer had to compare: those of rounds with more than one."""
    scored_tokens: int = 0
    """Their tokens."""
    empty_rounds: int = 0
    """Rounds in which no candidate was selectable."""
    degradations: tuple[Degradation, ...] = ()
    """What failed while the run went on; such a row is *degraded*."""
    text: str = ""
    """The solution."""
    seconds: float = 0.0
    """From start to end, other problems running beside it."""
    failure: Failure | None = None
    """None when there is a solution."""

    def use(self, proposer: str) -> Use:
        """A proposer's work; nothing where it takes no part."""
        return self.uses.get(proposer, Use())

    @property
    def degraded(self) -> bool:
        """Whether something failed without ending the run."""
        return bool(self.degradations)

    @property
    def identity(self) -> tuple[str, str, str]:
        """What a run may hold once."""
        return self.setting, self.problem, self.digest


_ADAPTER: Final = TypeAdapter(Record)


def record_line(record: Record) -> str:
    """A record as one line of JSON, without its line break."""
    data = {"schema": SCHEMA, **_ADAPTER.dump_python(record, mode="json")}
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def parse_record(line: str) -> Record:
    """The record that `record_line` wrote.

    Raises:
        ConfigError: the line is no record of this schema.
    """
    try:
        data = json.loads(line)
        fields = dict(cast("Mapping[str, Any]", data))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"not a record: {line[:80]!r}") from error
    if fields.pop("schema", None) != SCHEMA:
        raise ConfigError(f"not a record of schema {SCHEMA}: {line[:80]!r}")
    try:
        return _ADAPTER.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"not a record: {where}: {first['msg']}") from error

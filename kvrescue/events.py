"""Events: what happens in a trajectory, as it happens, and their form as JSON lines.

What decides is told and written to traces; that an evictor fired (`EvictionFired`) is told to those
who listen, and not written: it may happen with every token.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TextIO, TypeAlias, cast

from pydantic import TypeAdapter, ValidationError

from kvrescue.detectors.base import Source
from kvrescue.errors import ConfigError
from kvrescue.evictors.firing import Firing, When
from kvrescue.faults import line, translated
from kvrescue.types import CacheStats, Candidate, CommittedStep, Question, Solution

if TYPE_CHECKING:
    from numpy import ndarray

__all__ = [
    "SCHEMA_VERSION",
    "CandidateFinished",
    "Event",
    "EvictionFired",
    "RoundSkipped",
    "StepCommitted",
    "TraceWriter",
    "TrajectoryFinished",
    "TrajectoryStarted",
    "as_dict",
    "from_dict",
    "solution_as_dict",
    "solution_from_dict",
    "within_json",
]

SCHEMA_VERSION: Final = 1
"""Raised when a field of an event changes its meaning or goes away; new fields do not raise it."""


@dataclass(frozen=True, slots=True)
class TrajectoryStarted:
    """Every view is open; the first step is about to be drawn."""

    question: Question
    """What is to be solved."""
    seed: int
    """Of the run."""
    proposers: tuple[str, ...]
    """Their names, in the order that breaks ties."""
    caches: Mapping[str, CacheStats] = field(default_factory=dict)
    """Of every view: it holds the prompt."""
    rooms: Mapping[str, int] = field(default_factory=dict)
    """Tokens that fit into every view on top of the prompt, as far as its policy is concerned."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """What every proposer's detectors are fed."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """What decides beside models and scorer, as configuration data: `proposers` (`candidates` and
    `detectors` of each), `sampling`, `limits`, and what is done in the end and on failures."""

    @property
    def question_id(self) -> str:
        """Which trajectory."""
        return self.question.id


@dataclass(frozen=True, slots=True)
class CandidateFinished:
    """A candidate was drawn or aborted. A round's candidates are told in pool order, once all are
    there, so that the same run gives the same events."""

    question_id: str
    """Which trajectory."""
    draw: int
    """Number of the round, skipped ones counted."""
    step: int
    """Number of the step it was drawn for."""
    candidate: Candidate
    """As it was drawn, with its verdict."""
    seed: int | None = None
    """Of the run: a question may run under several at once. None in old traces."""


@dataclass(frozen=True, slots=True)
class RoundSkipped:
    """No candidate of the round is selectable; nothing was committed."""

    question_id: str
    """Which trajectory."""
    draw: int
    """Number of the round, skipped ones counted."""
    step: int
    """Number of the step that was to be drawn."""
    reason: Literal["empty", "flagged"]
    """`flagged` when detectors aborted every candidate."""
    in_a_row: int
    """Rounds skipped since the last commit, this one included."""
    seed: int | None = None
    """Of the run; None in old traces."""


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step was chosen and every view has advanced to it."""

    question_id: str
    """Which trajectory."""
    step: CommittedStep
    """With all candidates of its round, and their scores."""
    caches: Mapping[str, CacheStats] = field(default_factory=dict)
    """Of every view. After the last step of a trajectory nothing is drawn, so no view reads it."""
    seed: int | None = None
    """Of the run; None in old traces."""


@dataclass(frozen=True, slots=True)
class TrajectoryFinished:
    """The last event of a run that did not fail."""

    solution: Solution
    """The whole of it."""

    @property
    def question_id(self) -> str:
        """Which trajectory."""
        return self.solution.question.id

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.solution.seed


@dataclass(frozen=True, slots=True, eq=False)
class EvictionFired:
    """An evictor dropped entries of one row, told at once and to those who listen only.

    Not an `Event`: it is neither streamed nor written to traces.
    """

    question_id: str
    seed: int
    proposer: str
    step: int
    """Number of the step that is drawn, or was committed."""
    when: When
    """`prompt`: it was read; `decode`: a candidate was being drawn; `rebase`: the committed step
    was read (of an own step only its last token was still to be read)."""
    candidate: int | None
    """Its index among the proposer's while it was being drawn, else None."""
    dropped: int
    """Entries per layer and KV head."""
    logical_length: int
    """Tokens of prompt, committed steps and, while it is drawn, the candidate."""
    physical_length: int
    """Entries held per layer and KV head, after it."""
    positions: Callable[[], ndarray] = field(repr=False)
    """int32 [layers, kv_heads, physical length]: the logical positions that every layer and KV head
    holds now, ascending. Read from the cache when it is called, which must be before the hook
    returns: later, an `EvictorError` is raised, unless it was called before."""

    @classmethod
    def of(cls, firing: Firing, question_id: str, seed: int, proposer: str, step: int) -> Self:
        """What an engine told, and of which trajectory."""
        return cls(
            question_id,
            seed,
            proposer,
            step,
            firing.when,
            firing.candidate,
            firing.dropped,
            firing.logical_length,
            firing.physical_length,
            firing.positions,
        )


Event: TypeAlias = (
    TrajectoryStarted | CandidateFinished | RoundSkipped | StepCommitted | TrajectoryFinished
)
"""Any of them."""

_NAMES: Final[Mapping[type[Any], str]] = {
    TrajectoryStarted: "trajectory_started",
    CandidateFinished: "candidate_finished",
    RoundSkipped: "round_skipped",
    StepCommitted: "step_committed",
    TrajectoryFinished: "trajectory_finished",
}
_TYPES: Final[Mapping[str, type[Any]]] = {name: event for event, name in _NAMES.items()}


_ADAPTERS: Final[Mapping[type[Any], TypeAdapter[Any]]] = {
    value_type: TypeAdapter(value_type) for value_type in (*_NAMES, Solution)
}


def _plain(value: Event | Solution) -> dict[str, Any]:
    plain = within_json(_ADAPTERS[type(value)].dump_python(value, mode="json"))
    return cast("dict[str, Any]", plain)


def within_json(value: object) -> object:
    """NaN and infinity (an entropy, a measured value) as strings: JSON has no number for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: within_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [within_json(item) for item in value]
    return value


def _parse(value_type: type[Any], fields: Mapping[str, Any]) -> Any:
    try:
        return _ADAPTERS[value_type].validate_python(fields)
    except ValidationError as error:
        first = translated(value_type, error.errors(include_url=False)[0])
        told = ValidationError.from_exception_data(error.title, [first])
        raise ConfigError(
            f"not a {value_type.__name__}: {line(told.errors(include_url=False)[0])}"
        ) from error


def as_dict(event: Event) -> dict[str, Any]:
    """An event as plain JSON data, with its name and the schema version."""
    return {"schema": SCHEMA_VERSION, "event": _NAMES[type(event)], **_plain(event)}


def from_dict(data: Mapping[str, Any]) -> Event:
    """The event that `as_dict` wrote.

    Raises:
        ConfigError: the data is of another schema or of no event.
    """
    fields = dict(data)
    schema, name = fields.pop("schema", None), fields.pop("event", None)
    if schema != SCHEMA_VERSION or name not in _TYPES:
        raise ConfigError(
            f"not an event of schema {SCHEMA_VERSION}: schema {schema!r}, event {name!r}"
        )
    return cast("Event", _parse(_TYPES[name], fields))


def solution_as_dict(solution: Solution) -> dict[str, Any]:
    """A solution as plain JSON data."""
    return {"schema": SCHEMA_VERSION, **_plain(solution)}


def solution_from_dict(data: Mapping[str, Any]) -> Solution:
    """The solution that `solution_as_dict` wrote."""
    fields = dict(data)
    schema = fields.pop("schema", None)
    if schema != SCHEMA_VERSION:
        raise ConfigError(f"not a solution of schema {SCHEMA_VERSION}: schema {schema!r}")
    return cast("Solution", _parse(Solution, fields))


class TraceWriter:
    """Appends events to a JSONL file, one line each, flushed at once.

    A run that is interrupted keeps every line written so far. An instance is a callable, so it can
    be passed as an observer. Safe to share between threads.

    Raises:
        ConfigError: the file cannot be opened or written.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._failed = False
        try:
            self._file: TextIO = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._error(error) from error

    def __call__(self, event: Event) -> None:
        line = json.dumps(as_dict(event), separators=(",", ":"), allow_nan=False)
        try:
            with self._lock:
                self._file.write(line + "\n")
                self._file.flush()
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            self._failed = True
            raise self._error(error) from error

    write = __call__
    """The same as calling it."""

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        try:
            with self._lock:
                self._file.close()
        except OSError as error:
            if not self._failed:  # else what could not be written is told already
                raise self._error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _error(self, error: Exception) -> ConfigError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return ConfigError(
            f"the trace {str(self.path)!r} cannot be written: {reason}; choose another path"
        )

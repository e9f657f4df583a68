"""The folder of a run: what is in it, how it is written, and how it is read back.

    plan.json        problems and settings, in full
    sessions.jsonl   one line each time the run was started: time, versions, machine
    records.jsonl    one line per problem and setting
    traces/KEY/ID.jsonl.gz   events of the first problems of a setting, as `--trace` writes them

A record is appended in one write and synced, so a run that is killed keeps every record it told of.
A line that was torn by a crash is cut off when the run is opened again. One process writes at a
time: a lock says so to a second one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from kvrescue.errors import ConfigError, RunError
from kvrescue.evaluation.files import locked, write_whole
from kvrescue.evaluation.problems import Problem, ProblemSet
from kvrescue.evaluation.runs.record import Record, parse_record, record_line
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.traces import read_events, write_events
from kvrescue.events import Event

__all__ = ["Run", "RunWriter"]

PLAN_SCHEMA: Final = 1

_PLAN: Final = "plan.json"
_SESSIONS: Final = "sessions.jsonl"
_RECORDS: Final = "records.jsonl"
_TRACES: Final = "traces"
_LOCK: Final = ".lock"


@dataclass(frozen=True)
class Run:
    """A run as it is on disk, for tables and reports."""

    path: Path
    """The folder."""
    problems: ProblemSet
    """In the order of the plan."""
    settings: Mapping[str, Setting]
    """By key, in the order of the plan."""
    compositions: Mapping[str, tuple[str, ...]]
    """Keys of the settings that were asked for together, by `composition_of` their configuration;
    the one that was asked for last stands last. A setting may be of several."""
    records: Mapping[tuple[str, str], Record]
    """By setting and problem: the last one of each, failures included."""
    sessions: tuple[Mapping[str, Any], ...] = field(default=())
    """One for each time the run was started."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run, finished or not.

        Raises:
            RunError: there is none, or it is damaged.
        """
        folder = Path(path)
        plan = _read_plan(folder)
        if plan is None:
            raise RunError(f"{str(folder)!r} holds no run: {_PLAN} is missing")
        problems = ProblemSet.from_data(plan["problems"])
        settings = {data["key"]: Setting.from_data(data) for data in plan["settings"]}
        compositions = {name: tuple(keys) for name, keys in plan["compositions"]}
        wanted = {problem.id: problem.digest for problem in problems}
        records = {
            (record.setting, record.problem): record
            for record in _records(folder / _RECORDS)
            if record.setting in settings and wanted.get(record.problem) == record.digest
        }
        sessions = tuple(json.loads(line) for line in _whole_lines(folder / _SESSIONS))
        return cls(folder, problems, settings, compositions, records, sessions)

    def of(self, key: str) -> list[Record]:
        """Records of a setting that came to an end, in the order of the problems."""
        found = (self.records.get((key, problem.id)) for problem in self.problems)
        return [record for record in found if record is not None and record.failure is None]

    def events(self, key: str, problem: str) -> list[Event] | None:
        """The trace of one trajectory; None when none was kept.

        Raises:
            RunError: it is damaged.
        """
        try:
            return list(read_events(self.path / self.trace_file(key, problem), whole=True))
        except FileNotFoundError:
            return None

    @staticmethod
    def trace_file(key: str, problem: str) -> Path:
        """Where a trace lies in the folder."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", problem)[:80] + "-" + Problem.short_hash(problem)
        return Path(_TRACES, key, f"{name}.jsonl.gz")


class RunWriter:
    """The one writer of a run's folder.

    Args:
        path: the folder; it is made when it is missing.
        problems: what is solved. A folder that holds a run over other problems is refused.
        settings: what is run; settings that the folder knows already stay.
        composition: what they are methods of, see `composition_of`.
        session: what to note about this start.

    Raises:
        RunError: the folder cannot be used, is in use, or belongs to another run.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        problems: ProblemSet,
        settings: Iterable[Setting],
        composition: str,
        session: Mapping[str, Any],
    ) -> None:
        self.path = Path(path)
        try:
            with contextlib.ExitStack() as files:
                self.path.mkdir(parents=True, exist_ok=True)
                _refuse_other_things(self.path)
                files.enter_context(locked(self.path / _LOCK))
                _write_plan(self.path, problems, list(settings), composition)
                with _cut_to_whole_lines(self.path / _SESSIONS) as file:
                    _append(file, json.dumps(session))
                self._records = files.enter_context(_cut_to_whole_lines(self.path / _RECORDS))
                self.known = [r for r in _records(self.path / _RECORDS) if r.failure is None]
                """What came to an end in earlier sessions."""
                self._files = files.pop_all()
        except OSError as error:
            raise _unusable(self.path, error) from error
        self.done = {record.identity for record in self.known}

    def write(self, record: Record, events: Iterable[Event] = ()) -> None:
        """Keep a record, and its events first, so that a record's trace is never missing."""
        if record.identity in self.done:
            raise RunError(f"{record.setting}, {record.problem}: recorded already")
        try:
            told = list(events)
            if told:
                path = self.path / Run.trace_file(record.setting, record.problem)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_events(path, told)
            _append(self._records, record_line(record))
        except OSError as error:
            raise _unusable(self.path, error) from error
        if record.failure is None:
            self.done.add(record.identity)

    def close(self) -> None:
        """Give the folder free; closing twice is fine."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unusable(path: Path, error: OSError) -> RunError:
    reason = error.strerror or str(error)
    return RunError(f"the run's folder {str(path)!r} cannot be used: {reason}; choose another")


def _refuse_other_things(folder: Path) -> None:
    if (folder / _PLAN).exists():
        return
    # A start that was killed at once leaves a lock, and perhaps a plan half written.
    if any(not path.name.startswith((_LOCK, _PLAN)) for path in folder.iterdir()):
        raise RunError(
            f"the folder {str(folder)!r} holds other things and no run: choose a new one"
        )


# -- plan -------------------------------------------------------------------------------------


def _read_plan(folder: Path) -> dict[str, Any] | None:
    path = folder / _PLAN
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(folder, error) from error
    except ValueError as error:
        raise RunError(f"{str(path)!r} is damaged: {error}") from error
    if not isinstance(plan, dict) or plan.get("schema") != PLAN_SCHEMA:
        raise RunError(f"{str(path)!r} is no plan of schema {PLAN_SCHEMA}")
    missing = [name for name in ("problems", "settings", "compositions") if name not in plan]
    if missing:
        raise RunError(f"{str(path)!r} is damaged: it lacks {', '.join(missing)}")
    return plan


def _write_plan(
    folder: Path, problems: ProblemSet, settings: list[Setting], composition: str
) -> None:
    known = _read_plan(folder)
    entries = {setting.key: setting.data() for setting in settings}
    compositions: dict[str, list[str]] = {}
    if known is not None:
        before = ProblemSet.from_data(known["problems"])
        if not before.starts_like(problems):
            raise RunError(
                f"{str(folder)!r} holds a run over {before.describe()}, not over "
                f"{problems.describe()}: choose another folder"
            )
        problems = max(before, problems, key=len)
        entries = {data["key"]: data for data in known["settings"]} | entries
        compositions = dict(known["compositions"])
    # Last, whether it is new or not: what was asked for last is what is reported.
    before_this = compositions.pop(composition, [])
    compositions[composition] = list(dict.fromkeys([*before_this, *(s.key for s in settings)]))
    plan = {
        "schema": PLAN_SCHEMA,
        "problems": problems.data(),
        "settings": list(entries.values()),
        "compositions": list(compositions.items()),
    }
    write_whole(folder / _PLAN, json.dumps(plan, indent=1).encode())


# -- lines ------------------------------------------------------------------------------------


def _append(file: BinaryIO, line: str) -> None:
    whole = line.encode() + b"\n"
    written = file.write(whole)
    if written != len(whole):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file.fileno())


def _cut_to_whole_lines(path: Path) -> BinaryIO:
    """Open for appending, without the rest of a line that a crash has torn."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return path.open("ab", buffering=0)


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return lines


def _records(path: Path) -> Iterator[Record]:
    for number, line in enumerate(_whole_lines(path), 1):
        try:
            yield parse_record(line)
        except ConfigError as error:
            raise RunError(f"{str(path)!r}, line {number}: {error}") from error

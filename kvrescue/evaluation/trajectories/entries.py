"""What is read for a report: problems, and what runs and traces tell of each."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvrescue.errors import RunError
from kvrescue.evaluation.grading.grade import GradingRule
from kvrescue.evaluation.problems import Problem
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.trajectories import settings as columns
from kvrescue.evaluation.trajectories.settings import Column
from kvrescue.evaluation.trajectories.trace import Trajectory, read_trace, trajectories

__all__ = ["Entry", "Sources"]


@dataclass
class Entry:
    """One problem while the sources are read."""

    id: str
    question: str
    gold: str | None
    rule: GradingRule | None
    records: dict[int, Record] = field(default_factory=dict)
    """By column."""
    traces: dict[int, Trajectory] = field(default_factory=dict)


@dataclass
class Sources:
    """What was read so far."""

    names: list[str] = field(default_factory=list)
    about: list[dict[str, Any]] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    entries: dict[tuple[str, str | None], Entry] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    damaged: list[Path] = field(default_factory=list)
    """Traces of runs that could not be read."""

    def add_run(self, run: Run) -> None:
        source = len(self.names)
        self.runs[source] = run
        self.names.append(run.path.resolve().name)
        self.about.append({"kind": "run", "problems": run.problems.describe()})
        first = len(self.columns)
        settings = columns.in_order(run.settings.values())
        self.columns += [columns.of_run(source, setting) for setting in settings]
        for problem in run.problems:
            entry = self._entry(problem, run.problems.rule)
            for place in range(first, len(self.columns)):
                record = run.records.get((self.columns[place].key, problem.id))
                if record is not None:
                    entry.records[place] = record

    def add_trace(self, path: str | os.PathLike[str]) -> None:
        source = len(self.names)
        self.names.append(Path(path).name)
        self.about.append({"kind": "trace", "problems": None})
        places: dict[tuple[int, int], int] = {}
        for trajectory in read_trace(path):
            entry = self._asked(trajectory)
            for take in itertools.count():
                cell = (trajectory.seed, take)
                if cell not in places:
                    places[cell] = len(self.columns)
                    self.columns.append(columns.of_trace(source, *cell))
                if places[cell] not in entry.traces:
                    entry.traces[places[cell]] = trajectory
                    break

    def read_traces(self, entry: Entry) -> None:
        """Read what the runs have traced of a problem."""
        for place, record in entry.records.items():
            column = self.columns[place]
            run = self.runs[column.source]
            try:
                found = trajectories(run.events(column.key, record.problem) or ())
            except RunError:
                self.damaged.append(run.path / run.trace_file(column.key, record.problem))
                continue
            for trajectory in found:
                entry.traces[place] = trajectory

    def _entry(self, problem: Problem, rule: GradingRule) -> Entry:
        fresh = Entry(problem.id, problem.question, problem.answer, rule)
        return self.entries.setdefault((problem.question, problem.answer), fresh)

    def _asked(self, trajectory: Trajectory) -> Entry:
        question = trajectory.question
        for entry in self.entries.values():
            if entry.question == question.text:
                return entry
        fresh = Entry(question.id, question.text, None, None)
        return self.entries.setdefault((question.text, None), fresh)

"""Running a plan: missing problems to worker processes, records to the run's folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvrescue.errors import RunError
from kvrescue.evaluation.grading import Grade, Grader, GradingRule
from kvrescue.evaluation.runs.folder import RunWriter
from kvrescue.evaluation.runs.plan import BenchPlan
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.runs.work import Task, solve_task, tasks_of, tiny_at_once
from kvrescue.evaluation.surroundings import surroundings
from kvrescue.evaluation.workers import MOST_WORKERS, in_workers
from kvrescue.events import Event
from kvrescue.faults import whole_number

__all__ = ["Progress", "RunOptions", "run_plan"]

_PIECE: Final = 4
"""Problems of a task, in multiples of those in flight: few starts, little lost when it is cut."""


@dataclass(frozen=True)
class RunOptions:
    """How a plan is carried out; nothing here changes what is measured.

    Raises:
        ConfigError: a number is out of range.
    """

    workers: int = 1
    """Processes."""
    in_flight: int | None = None
    """Problems that a worker solves at once; None: as configured, more for the tiny trio."""
    traces: int = 0
    """Problems, from the first, whose events are kept (for the first seed)."""
    most_failures: int = 10
    """Failed problems in a row that end the run; the others are told and tried again next time."""

    def __post_init__(self) -> None:
        whole_number("workers", self.workers, 1, MOST_WORKERS)
        whole_number("traces", self.traces, least=0)
        whole_number("most-failures", self.most_failures, least=1)
        if self.in_flight is not None:
            whole_number("in-flight", self.in_flight, least=1)


@dataclass(frozen=True)
class Progress:
    """How far a run is, told with every record."""

    setting: Setting
    record: Record
    done: int
    """Problems of this setting that are recorded, failures not counted."""
    correct: int
    of: int
    share: float
    """Of the whole run's work, by candidates."""
    finished: int
    """Problems solved in this session, over all settings."""
    left: int
    """Problems that are still missing."""


Told = Callable[[Progress], None]


def run_plan(
    plan: BenchPlan,
    folder: str | os.PathLike[str],
    options: RunOptions | None = None,
    told: Told | None = None,
) -> int:
    """Run what is missing; returns the number of problems that failed.

    Every record is on disk when it is told. A run that was interrupted or killed goes on where it
    stood: what is recorded is not run again, and failed problems are.

    Args:
        plan: what to run.
        folder: the run's; made when it is missing.
        options: how.
        told: called with each new record.

    Raises:
        RunError: the folder cannot be used, or too many problems in a row failed.
        WorkerError: a worker process died.
        KVRescueError: a setting cannot be run at all.
    """
    options = options or RunOptions()
    settings = plan.settings
    with RunWriter(folder, plan.problems, settings, plan.composition, surroundings()) as writer:
        tally = _Tally(plan, settings, writer, options, told)
        tasks = list(_tasks(plan, settings, writer, options))
        if tasks:
            with Grader(workers=1) as grader:
                if plan.problems.rule is GradingRule.MATH:
                    grader.start()  # now, not when the first solution is there
                _carry_out(tasks, options.workers, plan.problems.rule, grader, tally)
        return tally.failures


def _carry_out(
    tasks: list[Task], workers: int, rule: GradingRule, grader: Grader, tally: _Tally
) -> None:
    for found in in_workers(solve_task, tasks, workers):
        if found.message is None:
            continue
        record, events = found.message.record, found.message.events
        if record.failure is None:
            # Waited for, so that a solution is on disk at once; the workers go on meanwhile.
            record = graded(record, grader.grade(record.text, record.gold, rule))
        tally.add(record, events)


def _tasks(
    plan: BenchPlan, settings: list[Setting], writer: RunWriter, options: RunOptions
) -> Iterator[Task]:
    traced = frozenset(problem.id for problem in plan.problems[: options.traces])
    for setting in settings:
        missing = [
            problem
            for problem in plan.problems
            if (setting.key, problem.id, problem.digest) not in writer.done
        ]
        tiny = plan.problems.name.startswith("tiny")
        flying = options.in_flight
        if flying is None:
            flying = tiny_at_once(setting.n) if tiny else setting.config.concurrency
        yield from tasks_of(
            setting,
            missing,
            size=flying if tiny else flying * _PIECE,
            in_flight=flying,
            traced=traced if setting.seed == plan.seeds[0] else (),
            threads=1 if options.workers > 1 else None,
        )


class _Tally:
    """Writes records and counts them."""

    def __init__(
        self,
        plan: BenchPlan,
        settings: list[Setting],
        writer: RunWriter,
        options: RunOptions,
        told: Told | None,
    ) -> None:
        self.failures = 0
        self._writer, self._options, self._told = writer, options, told
        self._settings = {setting.key: setting for setting in settings}
        self._whole = len(plan.problems) * sum(setting.weight for setting in settings)
        self._size = len(plan.problems)
        wanted = {problem.id for problem in plan.problems}
        self._done = dict.fromkeys(self._settings, 0)
        self._correct = dict.fromkeys(self._settings, 0)
        for record in writer.known:
            if record.setting in self._settings and record.problem in wanted:
                self._count(record)
        self._finished = 0
        self._in_a_row = 0

    def add(self, record: Record, events: Sequence[Event]) -> None:
        self._writer.write(record, events)
        self._finished += 1
        if record.failure is None:
            self._count(record)
            self._in_a_row = 0
        else:
            self.failures += 1
            self._in_a_row += 1
        if self._told is not None:
            self._told(self._progress(record))
        if record.failure is not None and self._in_a_row >= self._options.most_failures:
            raise RunError(
                f"{self._in_a_row} problems in a row failed, the last one with "
                f"{record.failure.type}: {record.failure.message}"
            )

    def _count(self, record: Record) -> None:
        self._done[record.setting] += 1
        self._correct[record.setting] += record.correct

    def _progress(self, record: Record) -> Progress:
        done = sum(self._settings[key].weight * count for key, count in self._done.items())
        return Progress(
            setting=self._settings[record.setting],
            record=record,
            done=self._done[record.setting],
            correct=self._correct[record.setting],
            of=self._size,
            share=done / self._whole,
            finished=self._finished,
            left=self._size * len(self._settings) - sum(self._done.values()),
        )


def graded(record: Record, grade: Grade) -> Record:
    """A record with the verdicts of the grading rules."""
    verdicts = {"exact": grade.exact, "paper": grade.paper, "math_verify": grade.math_verify}
    rules: dict[str, bool | None] = {
        name: verdict for name, verdict in verdicts.items() if verdict is not None
    }
    for trouble in grade.troubles:
        rules[trouble.rule.value] = None
    return dataclasses.replace(record, answer=grade.answer, correct=grade.correct, rules=rules)

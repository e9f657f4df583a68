"""What a worker process does: solve some problems in one setting, and account for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kvrescue.config import load_config
from kvrescue.errors import KVRescueError
from kvrescue.evaluation.methods import Indifferent, needs_no_scorer
from kvrescue.evaluation.problems import Problem
from kvrescue.evaluation.runs.account import Account, Accountant
from kvrescue.evaluation.runs.record import Failure, Record
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.workers import sendable, set_up_worker
from kvrescue.events import Event
from kvrescue.options import SECRETS
from kvrescue.parts import Parts
from kvrescue.pipeline import Rescue
from kvrescue.questions import as_question
from kvrescue.types import Question

__all__ = ["Solved", "Task", "close_tasks", "solve_task", "tasks_of", "tiny_at_once"]


_TINY_CANDIDATES: Final = 800


@dataclass(frozen=True)
class Task:
    """Some problems in one setting."""

    key: str
    """Of the setting."""
    config: dict[str, Any]
    """Of the setting, as data."""
    problems: tuple[Problem, ...]
    traced: frozenset[str] = frozenset()
    """Ids of the problems whose events are wanted."""
    threads: int | None = None
    """Of arithmetic; None leaves it to the framework."""


@dataclass(frozen=True)
class Solved:
    """A record that is not graded yet, with its events where they are wanted."""

    record: Record
    events: tuple[Event, ...] = ()
    error: KVRescueError | None = None
    """What `record.failure` tells of."""


def tasks_of(
    setting: Setting,
    problems: Sequence[Problem],
    size: int,
    in_flight: int | None = None,
    traced: Iterable[str] = (),
    threads: int | None = None,
) -> Iterator[Task]:
    """A setting's problems in pieces.

    The size of a piece decides what is batched together, and so the last bits of sums: it must not
    depend on the number of workers.

    Args:
        setting: what is run.
        problems: on what.
        size: problems of a piece.
        in_flight: of them at once; None means all.
        traced: see `Task`.
        threads: see `Task`.
    """
    config = setting.config.model_copy(update={"concurrency": in_flight or size})
    data = config.model_dump(mode="json", context={SECRETS: True})
    for start in range(0, len(problems), size):
        piece = tuple(problems[start : start + size])
        yield Task(setting.key, data, piece, frozenset(traced), threads)


def tiny_at_once(n: int) -> int:
    """Problems of the tiny trio that are worth solving at once, with N candidates each."""
    return max(1, _TINY_CANDIDATES // n)


_parts = Parts()


def close_tasks() -> None:
    """Close the models of the last task in this process."""
    asyncio.run(_parts.aclose())


def solve_task(task: Task) -> Iterator[Solved]:
    """Solve a task's problems, all of them at once, and tell of each when it is done.

    The parts that the last task used and this one does not are closed, so that a setting's models
    make room for the next one's; equal ones are used again.
    """
    set_up_worker(task.threads)
    config = load_config(task.config)
    asyncio.run(_parts.keep_only(config))
    parts = _parts
    if needs_no_scorer(config) and not task.traced:
        parts = Parts(_parts.policies, [(config.scorer, Indifferent())])
    # The id of a question comes from its text, so `kvrescue solve` draws the same candidates.
    asked = {as_question(problem.question).id: problem for problem in task.problems}
    questions = [Question(problem.question) for problem in task.problems]
    accounts = Accountant()
    with Rescue.from_config(config, parts=parts, observers=[accounts]) as rescue:
        for question, outcome in rescue.solve_each(questions):
            problem = asked[question.id]
            account = accounts.take(question.id)
            record = Record(task.key, problem.id, problem.digest, problem.answer)
            if isinstance(outcome, KVRescueError):
                failure = Failure(type(outcome).__name__, str(outcome))
                yield Solved(replace(record, failure=failure), error=sendable(outcome))
                continue
            events = tuple(account.events) if problem.id in task.traced else ()
            yield Solved(_filled(record, account), events)


def _filled(record: Record, account: Account) -> Record:
    solution = account.solution
    if solution is None:
        raise KVRescueError(f"{record.setting}, {record.problem}: solved without an end (a bug)")
    return replace(
        record,
        answer=solution.answer,
        stop=solution.stop.value,
        steps=len(solution.steps),
        output_tokens=sum(step.candidate.n_tokens for step in solution.steps),
        sources=tuple(step.candidate.policy for step in solution.steps),
        uses=dict(account.uses),
        scored=account.scored,
        scored_tokens=account.scored_tokens,
        empty_rounds=solution.empty_rounds,
        degradations=solution.degradations,
        text=solution.text,
        seconds=round(account.seconds, 3),
    )

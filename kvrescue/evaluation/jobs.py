"""Jobs: one method on some problems, here or in worker processes.

A candidate's seed depends on the problem and not on what runs beside it, so jobs may be split over
processes; their size is fixed, whatever the number of workers, so that the numbers are, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kvrescue.config import load_config
from kvrescue.evaluation.bill import Bill
from kvrescue.evaluation.methods import (
    BASE,
    HELPER,
    Indifferent,
    Method,
    compose,
    needs_no_scorer,
)
from kvrescue.evaluation.workers import in_workers, set_up_worker
from kvrescue.parts import Parts
from kvrescue.pipeline import Rescue
from kvrescue.questions import as_question
from kvrescue.types import Solution, TokenUse

__all__ = ["Job", "Outcome", "run_jobs"]

_CANDIDATES_AT_ONCE: Final = 800
"""Of one proposer, in one piece of a job."""


@dataclass(frozen=True)
class Job:
    """One method on some problems."""

    config: Mapping[str, Any]
    """KV-Rescue's resolved configuration as data."""
    method: Method
    n: int
    seed: int
    problems: tuple[tuple[int, Bill], ...]
    """With their positions."""
    keep_solutions: bool = False

    @property
    def weight(self) -> int:
        """What it costs, roughly, in candidates."""
        return self.n * len(self.problems) * (2 if self.method == "kv_rescue" else 1)

    def split(self) -> list[Job]:
        """The same work in pieces."""
        size = max(1, _CANDIDATES_AT_ONCE // self.n)
        starts = range(0, len(self.problems), size)
        return [
            Job(
                self.config,
                self.method,
                self.n,
                self.seed,
                self.problems[start : start + size],
                self.keep_solutions,
            )
            for start in starts
        ]


@dataclass(frozen=True)
class Outcome:
    """What came of one problem."""

    problem: int
    correct: bool
    base: TokenUse
    helper: TokenUse
    solution: Solution | None = None
    """Kept where a job asks for it."""


def run_jobs(
    jobs: Sequence[Job],
    workers: int = 1,
    progress: Callable[[Job], None] | None = None,
) -> list[list[Outcome]]:
    """Outcomes of each job, in the order of its problems.

    Args:
        jobs: what to run.
        workers: processes; with 1 everything runs in this one.
        progress: called with each finished piece of a job.

    Raises:
        WorkerError: a worker process was killed.
        KVRescueError: whatever a job raises; the others are given up.
    """
    pieces = [(number, piece) for number, job in enumerate(jobs) for piece in job.split()]
    pieces.sort(key=lambda numbered: -numbered[1].weight)  # the longest first
    found: list[list[Outcome]] = [[] for _ in jobs]
    results = _here(pieces) if workers == 1 else _in_processes(pieces, workers)
    for (number, piece), outcomes in results:
        found[number] += outcomes
        if progress is not None:
            progress(piece)
    for outcomes in found:
        outcomes.sort(key=lambda outcome: outcome.problem)
    return found


def run_job(job: Job, parts: Parts) -> list[Outcome]:
    """Solve a job's problems, all of them at once."""
    config = compose(load_config(job.config), job.method, job.n)
    bills = {bill.question: (position, bill) for position, bill in job.problems}
    # The id of a question comes from its text, so `kvrescue solve` draws the same candidates.
    questions = [as_question(text) for text in bills]
    outcomes: list[Outcome] = []
    config = config.model_copy(update={"concurrency": len(questions)})
    if needs_no_scorer(config) and not job.keep_solutions:
        parts = Parts(parts.policies, [(config.scorer, Indifferent())])
    with Rescue.from_config(config, parts=parts) as rescue:
        for solution in rescue.solve_many(questions, seed=job.seed):
            position, bill = bills[solution.question.text]
            outcomes.append(
                Outcome(
                    problem=position,
                    correct=bill.grade(solution.text),
                    base=solution.tokens.get(BASE, TokenUse()),
                    helper=solution.tokens.get(HELPER, TokenUse()),
                    solution=solution if job.keep_solutions else None,
                )
            )
    return outcomes


Piece: TypeAlias = tuple[int, Job]
"""With the number of the job that it is a part of."""


def _here(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, list[Outcome]]]:
    parts = Parts()
    try:
        for piece in pieces:
            yield piece, run_job(piece[1], parts)
    finally:
        asyncio.run(parts.aclose())


def _in_processes(pieces: Sequence[Piece], workers: int) -> Iterator[tuple[Piece, list[Outcome]]]:
    tasks = [piece for _, piece in pieces]
    with contextlib.closing(in_workers(_run_in_worker, tasks, workers)) as found:
        for item in found:
            if item.message is not None:
                yield pieces[item.task], item.message


_worker_parts: Final = Parts()


def _run_in_worker(job: Job) -> Iterator[list[Outcome]]:
    set_up_worker(threads=1)
    yield run_job(job, _worker_parts)

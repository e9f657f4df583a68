"""Jobs: one method on some problems, here or in worker processes.

A candidate's seed depends on the problem and not on what runs beside it, so jobs may be split over
processes; their size is fixed, whatever the number of workers, so that the numbers are, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kvrescue.config import load_config
from kvrescue.errors import WorkerError
from kvrescue.evaluation.bill import Bill
from kvrescue.evaluation.methods import BASE, HELPER, Method, compose
from kvrescue.parts import Parts
from kvrescue.pipeline import Rescue
from kvrescue.policies.vllm.quiet import quiet_vllm
from kvrescue.questions import as_question
from kvrescue.scorers.base import Scorer
from kvrescue.types import Candidate, Context, Solution, TokenUse

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


class _Indifferent(Scorer):
    """Stands in where every round has one candidate, which is chosen whatever its score."""

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return [1.0] * len(candidates)


def run_job(job: Job, parts: Parts) -> list[Outcome]:
    """Solve a job's problems, all of them at once."""
    config = compose(load_config(job.config), job.method, job.n)
    bills = {bill.question: (position, bill) for position, bill in job.problems}
    # The id of a question comes from its text, so `kvrescue solve` draws the same candidates.
    questions = [as_question(text) for text in bills]
    outcomes: list[Outcome] = []
    config = config.model_copy(update={"concurrency": len(questions)})
    if job.n == 1 and len(config.proposers) == 1 and not job.keep_solutions:
        parts = Parts(parts.policies, [(config.scorer, _Indifferent())])
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


# The C library hands memory of large tensors back to the system and asks for it again at every
# step; workers keep it. Read by glibc when a process starts, ignored elsewhere.
_KEEP_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


def _in_processes(pieces: Sequence[Piece], workers: int) -> Iterator[tuple[Piece, list[Outcome]]]:
    before = set(multiprocessing.active_children())
    for name, value in _KEEP_MEMORY.items():
        os.environ.setdefault(name, value)
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    started: set[Any] = set()
    try:
        with _deaf_children():
            futures = {executor.submit(_run_in_worker, piece[1]): piece for piece in pieces}
            started = set(multiprocessing.active_children()) - before
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise _ended(started, workers) from error
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()  # one that is still starting is deaf to anything less
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _ended(started: Iterable[Any], workers: int) -> WorkerError:
    """What became of worker processes of which one ended: the pool then terminates the others."""
    others = (None, 0, -signal.SIGTERM)
    dead = [process for process in started if process.exitcode not in others]
    who = "one of them"
    if dead:
        code = dead[0].exitcode
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        who = f"process {dead[0].pid}, {how}"
    fewer = f"--workers {workers // 2}, or " if workers > 3 else ""
    return WorkerError(
        f"a worker process of {workers} ended before its work ({who}): if the system ran out of "
        f"memory, try {fewer}--workers 1, which does everything in this process"
    )


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started meanwhile never see Ctrl-C: it is the parent who decides what to end.

    Nor is the parent itself interrupted in the middle of starting one, which would then complain.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker_parts: Final = Parts()


def _start_worker() -> None:
    """Set up a worker: one thread of arithmetic, and no life after its parent's."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    quiet_vllm()
    import torch

    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    with contextlib.suppress(Exception):
        parent.join()
    os._exit(1)


def _run_in_worker(job: Job) -> list[Outcome]:
    return run_job(job, _worker_parts)

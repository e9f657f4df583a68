"""Grader: grades answers in worker processes that can be killed.

Why processes: sympy may take hours over one line, and a signal or a thread does not reach it inside
C code. Whatever an answer does to its worker, the run goes on with another one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import queue
import signal
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, TypeAlias

from kvrescue.answers import extract_answer
from kvrescue.errors import ConfigError, DependencyError, KVRescueError
from kvrescue.evaluation.grading.exact import grade_exact
from kvrescue.evaluation.grading.grade import (
    MATH_RULES,
    Grade,
    GradingRule,
    RuleName,
    Trouble,
    TroubleKind,
)
from kvrescue.evaluation.grading.process import Reply, RuleProcess
from kvrescue.faults import whole_number
from kvrescue.waiting import value_of

__all__ = ["Grader"]

_RULES: Final = {
    RuleName.PAPER: "kvrescue.evaluation.grading.paper_rule:paper_equal",
    RuleName.MATH_VERIFY: "kvrescue.evaluation.grading.math_verify_rule:math_verify_equal",
}
_MOST_WORKERS: Final = 4
"""Unless more are asked for: grading is cheap, models need the cores."""
_MOST_ASKED: Final = 1024
_SECONDS: Final = (0.01, 86_400)
"""Less would be none for a timer, and what takes more than a day is stuck."""
_LEAST_MEMORY_MB: Final = 256
_MOST_MEMORY_MB: Final = 1 << 30

_CLOSED: Final = "the grader is closed: make another one"

_Task: TypeAlias = tuple["Future[Grade]", str, str]
"""With an answer and the gold answer."""


class Grader:
    """Grades responses by the paper's rule and by math-verify, each with a time limit.

    For any number of threads and event loops at once. Worker processes start with the first
    grade and end with `close`, with the program, and when the program is killed.

        with Grader() as grader:
            grade = grader.grade(r"... \\boxed{\\frac12}", "0.5")
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout: float = 5.0,
        memory_mb: int = 1024,
    ) -> None:
        """Args:
            workers: processes, at most 1024; by default as many as there are processors, up to 4.
            timeout: seconds of processor time that each rule may take for an answer, from 0.01 to
                86400 (by the clock, on a busy machine, up to six times as many and 10 s more).
            memory_mb: MiB of address space that a worker may have; from 256 to 2^30.

        Raises:
            ConfigError: a value makes no sense, or is out of range.
        """
        usable = min(_MOST_WORKERS, os.cpu_count() or 1)
        count = usable if workers is None else whole_number("workers", workers, 1, _MOST_ASKED)
        least, most = _SECONDS
        if (
            isinstance(timeout, bool)
            or not isinstance(timeout, int | float)
            or not least <= timeout <= most
        ):
            raise ConfigError(
                f"timeout = {timeout!r}: expected a number of seconds from {least:g} to {most}"
            )
        memory = whole_number("memory_mb", memory_mb, _LEAST_MEMORY_MB, _MOST_MEMORY_MB) << 20
        self._lanes = _Lanes(count, float(timeout), memory)
        self._finalizer = weakref.finalize(self, self._lanes.close)

    def start(self) -> None:
        """Check that grading is possible, and start the workers; grading does so by itself.

        Raises:
            DependencyError: math-verify is not installed.
            KVRescueError: the grader is closed, or was made in another process.
        """
        self._lanes.start()

    def submit(
        self, response: str, gold: str | int, rule: GradingRule | str = GradingRule.MATH
    ) -> Future[Grade]:
        """Grade a response; the future can be waited for, cancelled, or asked later.

        Args:
            response: a solution; the content of its last box is its answer.
            gold: the right answer.
            rule: how to compare.

        Raises:
            ConfigError: `rule` is none, or `gold` is not of its kind.
            DependencyError, KVRescueError: as `start`.
        """
        future: Future[Grade] = Future()
        if _as_rule(rule) is GradingRule.EXACT:
            future.set_result(grade_exact(response, gold))
            return future
        answer = extract_answer(response)
        if answer is None:
            future.set_result(_verdicts(None, str(gold), {}))
            return future
        self.start()
        self._lanes.put((future, answer, str(gold)))
        return future

    def grade(
        self, response: str, gold: str | int, rule: GradingRule | str = GradingRule.MATH
    ) -> Grade:
        """As `submit`, and wait for the grade."""
        return value_of(self.submit(response, gold, rule))

    async def grade_async(
        self, response: str, gold: str | int, rule: GradingRule | str = GradingRule.MATH
    ) -> Grade:
        """As `grade`, without blocking the event loop."""
        return await asyncio.wrap_future(self.submit(response, gold, rule))

    def grade_many(
        self,
        pairs: Iterable[tuple[str, str | int]],
        rule: GradingRule | str = GradingRule.MATH,
    ) -> list[Grade]:
        """Grades of (response, gold) in their order, as many at once as there are workers."""
        futures = [self.submit(response, gold, rule) for response, gold in pairs]
        try:
            return [value_of(future) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Ids of the worker processes that are alive now."""
        return self._lanes.pids()

    def close(self) -> None:
        """End the workers; what has not been graded yet fails with a `KVRescueError`."""
        self._finalizer()

    def __enter__(self) -> Grader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _as_rule(rule: GradingRule | str) -> GradingRule:
    try:
        return GradingRule(rule)
    except ValueError:
        names = " or ".join(repr(str(known)) for known in GradingRule)
        raise ConfigError(f"rule = {rule!r}: expected {names}") from None


def _verdicts(answer: str | None, gold: str, replies: dict[RuleName, Reply]) -> Grade:
    """A grade from what each rule said; no answer is a wrong one."""
    equal = {rule: replies[rule].equal if rule in replies else False for rule in MATH_RULES}
    troubles = tuple(
        Trouble(rule, reply.trouble, reply.detail)
        for rule, reply in replies.items()
        if reply.trouble is not None
    )
    return Grade(
        GradingRule.MATH,
        answer,
        gold,
        paper=equal[RuleName.PAPER],
        math_verify=equal[RuleName.MATH_VERIFY],
        troubles=troubles,
    )


class _Lanes:
    """Threads that each feed one worker process; knows nothing of its grader, which may go."""

    def __init__(self, count: int, timeout: float, memory_bytes: int) -> None:
        self._count = count
        self._timeout = timeout
        self._memory_bytes = memory_bytes
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        # Reentrant: a grader may be collected, and so close, in the middle of anything.
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._processes: dict[int, RuleProcess] = {}
        self._closed = False
        self._pid = os.getpid()

    def start(self) -> None:
        if os.getpid() != self._pid:
            raise KVRescueError("a grader does not survive a fork: make one in this process")
        with self._lock:
            if self._closed:
                raise KVRescueError(_CLOSED)
            if self._threads:
                return
            if importlib.util.find_spec("math_verify") is None:
                raise DependencyError(
                    "grading mathematics needs math-verify: pip install 'kvrescue[eval]'"
                )
            self._threads = [
                threading.Thread(
                    target=self._run, args=(lane,), name=f"kvrescue-grading-{lane}", daemon=True
                )
                for lane in range(self._count)
            ]
            for thread in self._threads:
                thread.start()

    def put(self, task: _Task) -> None:
        with self._lock:
            if self._closed:
                raise KVRescueError(_CLOSED)
            self._tasks.put(task)

    def pids(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(process.pid for process in self._processes.values())

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            for process in self._processes.values():
                process.kill()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self, lane: int) -> None:
        """Grade until the pool closes."""
        if hasattr(signal, "pthread_sigmask"):
            # Processes started here inherit it: Ctrl-C and a closed terminal are for the parent,
            # who ends them.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            while (task := self._tasks.get()) is not None:
                future, answer, gold = task
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    grade = self._grade(lane, answer, gold)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(grade)
        finally:
            self._end(lane)

    def _grade(self, lane: int, answer: str, gold: str) -> Grade:
        replies = {rule: self._call(lane, rule, answer, gold) for rule in MATH_RULES}
        return _verdicts(answer, gold, replies)

    def _call(self, lane: int, rule: RuleName, answer: str, gold: str) -> Reply:
        while True:
            process = self._process(lane)
            fresh = process.calls == 0
            reply = process.call(_RULES[rule], answer, gold, self._timeout)
            if self._closed:
                raise KVRescueError(_CLOSED)
            if reply.trouble in (TroubleKind.TIMEOUT, TroubleKind.MEMORY, TroubleKind.DIED):
                self._end(lane)
                # Memory may have been used up by earlier answers, and anybody may kill a process:
                # only a fresh one shows what is due to this answer.
                if not fresh and reply.trouble is not TroubleKind.TIMEOUT:
                    continue
            return reply

    def _process(self, lane: int) -> RuleProcess:
        """The lane's process, started where there is none."""
        with self._lock:
            if self._closed:
                raise KVRescueError(_CLOSED)
            process = self._processes.get(lane)
            if process is not None:
                return process
            process = RuleProcess(tuple(_RULES.values()), self._memory_bytes)
            self._processes[lane] = process
        try:
            process.wait_until_ready()
        except BaseException:
            self._end(lane)
            raise
        return process

    def _end(self, lane: int) -> None:
        with self._lock:
            process = self._processes.pop(lane, None)
        if process is not None:
            process.close()

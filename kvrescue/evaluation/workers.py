"""Worker processes that send what they find as they find it.

Unlike an executor's futures, a task here yields many messages, so that nothing is lost of a task
that is cut short. Each worker has a pipe of its own: one that is killed can't leave a lock behind,
and the others and the parent hear of its end at once.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Generic, TypeVar, cast

from kvrescue.children import ENDINGS, deaf_children
from kvrescue.errors import KVRescueError, WorkerError
from kvrescue.waiting import TURN

__all__ = ["MOST_WORKERS", "Found", "in_workers", "sendable", "set_up_worker"]

MOST_WORKERS: Final = 256

T = TypeVar("T")
M = TypeVar("M")

# The C library hands memory of large tensors back to the system and asks for it again at every
# step; workers keep it. Read by glibc when a process starts, ignored elsewhere.
_KEEP_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


@dataclass(frozen=True)
class Found(Generic[M]):
    """A message of a task, or the end of the task."""

    task: int
    """Its place among the tasks."""
    message: M | None
    done: bool = False


def in_workers(
    work: Callable[[T], Iterable[M]], tasks: Sequence[T], workers: int
) -> Generator[Found[M], None, None]:
    """Run `work(task)` for every task, in order of start, and pass on what each yields.

    Leaving the generator early ends the workers at once.

    Args:
        work: importable; called in a worker, one task after the other.
        tasks: picklable.
        workers: processes; never more than tasks.

    Raises:
        KVRescueError: whatever a task raises; the others are given up.
        WorkerError: a process died.
    """
    rest = iter(enumerate(tasks))
    crew: dict[Connection, _Worker[T, M]] = {}
    try:
        with deaf_children(ENDINGS):  # SIGTERM, too, until they have started
            count = min(workers, len(tasks))
            for _ in range(count):
                worker = _Worker.start(work, count)
                crew[worker.pipe] = worker
        for worker in list(crew.values()):
            worker.give(next(rest, None))
        while busy := [pipe for pipe, worker in crew.items() if worker.task is not None]:
            for pipe in wait(busy, TURN):
                worker = crew[cast("Connection", pipe)]
                found = worker.hear()
                if found.done:
                    worker.give(next(rest, None))
                yield found
    except BaseException:
        for worker in crew.values():
            worker.process.kill()  # one that is still starting is deaf to anything less
        raise
    finally:
        for worker in crew.values():
            worker.end()


@dataclass
class _Worker(Generic[T, M]):
    process: BaseProcess
    pipe: Connection
    crew: int
    """How many there are."""
    task: int | None = None
    """Place of the task it works on; None when it is idle."""

    @classmethod
    def start(cls, work: Callable[[T], Iterable[M]], crew: int) -> _Worker[T, M]:
        for name, value in _KEEP_MEMORY.items():
            os.environ.setdefault(name, value)
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_main, args=(there, work), daemon=False)
        process.start()
        there.close()  # so that its end is seen here when the process dies
        return cls(process, here, crew)

    def give(self, numbered: tuple[int, T] | None) -> None:
        """Hand out a task, or send the worker home."""
        self.task = None
        if numbered is None:
            return
        self.task = numbered[0]
        with contextlib.suppress(BrokenPipeError):  # it died: `hear` finds out how
            self.pipe.send(numbered[1])

    def hear(self) -> Found[M]:
        """The next message of its task; waits for it."""
        try:
            kind, value = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(10)
            raise WorkerError(
                f"a worker process of {self.crew} ended before its work (process "
                f"{self.process.pid}, {_end_of(self.process.exitcode)}): if the system ran out of "
                f"memory, {_way_out(self.crew)}"
            ) from None
        if kind == "error":
            raise value
        return Found(cast("int", self.task), value, done=kind == "done")

    def end(self) -> None:
        self.pipe.close()
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _way_out(workers: int) -> str:
    if workers == 1:
        return "free some, or solve fewer problems at once"
    half = f"--workers {workers // 2}, or " if workers > 3 else ""
    return f"try {half}--workers 1"


def _end_of(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-exitcode).name}"
    return f"with exit code {exitcode}"


# -- in the worker ----------------------------------------------------------------------------


@functools.cache
def set_up_worker(threads: int | None) -> None:
    """Set up this process for models, once: quiet, and with a number of threads for arithmetic."""
    from kvrescue.policies.vllm.quiet import quiet_vllm

    quiet_vllm()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _main(pipe: Connection, work: Callable[[Any], Iterable[Any]]) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task = pipe.recv()
            try:
                for message in work(task):
                    pipe.send(("found", message))
            except Exception as error:
                pipe.send(("error", sendable(error)))
            else:
                pipe.send(("done", None))


def _end_with(parent: Any) -> None:
    with contextlib.suppress(Exception):
        parent.join()
    os._exit(1)


E = TypeVar("E", bound=Exception)


def sendable(error: E) -> E | KVRescueError:
    """The error, or what it says where it cannot travel between processes as it is."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return KVRescueError(f"{type(error).__name__}: {error}")
    return error

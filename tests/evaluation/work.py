"""Work for worker processes in tests: importable, and without models."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory

from tqdm import tqdm

from kvrescue.errors import ConfigError
from kvrescue.evaluation.workers import set_up_worker
from tests.processes import named, shared


def count_up(task: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yields (start, start + i) for i in range(count)."""
    start, count = task
    for i in range(count):
        yield start, start + i


def blocked(_: int) -> Iterator[set[int]]:
    """Yields the numbers of the signals that this process does not get."""
    yield {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def hold(task: str) -> Iterator[list[str]]:
    """Yields what the system now has under a name because of this process, and waits for its end.

    A progress bar, shown or hidden, as loading a model has; a lock, as vLLM's executors have.
    """
    set_up_worker(None)
    if task == "memory":
        held: object = SharedMemory(create=True, size=1)
    elif task == "lock":
        held = multiprocessing.Lock()
    else:
        held = tqdm(range(2), disable=task == "hidden", file=io.StringIO())
        list(held)
    yield named(shared(os.getpid()))
    time.sleep(3600)
    del held


def misbehave(task: str) -> Iterator[object]:
    """Yields its own process id, then does what the task says."""
    yield os.getpid()
    if task == "typed":
        raise ConfigError("budget = 0: at least 1")
    if task == "untyped":
        raise ValueError("plain")
    if task == "unsendable":
        error = ValueError("with a lambda")
        error.extra = lambda: None  # type: ignore[attr-defined]
        raise error
    if task == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "exit":
        os._exit(3)
    if task == "endless":
        time.sleep(3600)

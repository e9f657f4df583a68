"""Work for worker processes in tests: importable, and without models."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator

from tqdm import tqdm

from kvrescue.errors import ConfigError
from kvrescue.evaluation.workers import set_up_worker


def count_up(task: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yields (start, start + i) for i in range(count)."""
    start, count = task
    for i in range(count):
        yield start, start + i


def blocked(_: int) -> Iterator[set[int]]:
    """Yields the numbers of the signals that this process does not get."""
    yield {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def show_bars(task: str) -> Iterator[str]:
    """Shows a progress bar, as loading a model does, and then waits for its end."""
    set_up_worker(None)
    for _ in tqdm(range(2), disable=task == "hidden", file=io.StringIO()):
        pass
    yield task
    time.sleep(3600)


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

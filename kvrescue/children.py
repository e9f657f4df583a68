"""Child processes that leave the keyboard and the terminal to their parent."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Set
from multiprocessing import resource_tracker
from typing import Any, Final

__all__ = ["ENDINGS", "deaf_children", "quiet_tracker"]

_TERMINALS: Final = frozenset({signal.SIGINT, signal.SIGHUP})
ENDINGS: Final = _TERMINALS | {signal.SIGTERM}
"""Signals by which somebody asks a process to end."""


@contextlib.contextmanager
def deaf_children(to: Set[signal.Signals] = _TERMINALS) -> Iterator[None]:
    """Processes started meanwhile never see Ctrl-C, nor that the terminal was closed: it is the
    parent who decides what to end.

    Nor is the parent interrupted in the middle of starting one, which would then complain: what
    comes meanwhile is raised afterwards.

    Args:
        to: signals that they have blocked from the beginning.
    """
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    for number in ENDINGS:
        with contextlib.suppress(ValueError):  # only the main thread has handlers
            # A blocked signal may still reach another thread, and Python then handles it in this.
            handlers[number] = signal.signal(number, lambda number, _: came.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, to)
    try:
        quiet_tracker()  # it starts with the first process
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def quiet_tracker() -> None:
    """Start multiprocessing's resource tracker, unless it runs, so that it outlives a terminal and
    does not complain of what it clears away.

    It removes semaphores and shared memory of processes that were ended on purpose and at once:
    progress bars, vLLM's executors and whatever else a part of their work may lock.
    """
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")  # it is started with our options
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINALS)
    try:
        resource_tracker.ensure_running()
    finally:
        # Before Python 3.13, SIGINT and SIGTERM have been unblocked on the way.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.warnoptions.pop()

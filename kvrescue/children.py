"""Child processes that leave the keyboard and the terminal to their parent."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Set
from multiprocessing import process, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, Final

__all__ = ["ENDINGS", "deaf_children", "forget_child", "quiet_tracker"]

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
    with contextlib.ExitStack() as later:
        if threading.current_thread() is threading.main_thread():  # only it has handlers
            # A blocked signal may still reach another thread, and Python then handles it in this.
            later.enter_context(_noted(came))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, to)
        later.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        quiet_tracker()  # it starts with the first process
        yield


@contextlib.contextmanager
def _noted(came: list[int]) -> Iterator[None]:
    """Whoever handles `ENDINGS` hears of each once, afterwards."""
    # None is a handler that only its owner, who is no program in Python, could put back; and what
    # is ignored is ignored by children, too.
    handlers = {n: h for n in ENDINGS if (h := signal.getsignal(n)) not in (None, signal.SIG_IGN)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        with contextlib.ExitStack() as then:  # whatever one of them raises
            for number in reversed(dict.fromkeys(came)):
                then.callback(_tell, number, handlers[signal.Signals(number)])
            for number, handler in handlers.items():
                then.callback(signal.signal, number, handler)


def _tell(number: int, handler: Any) -> None:
    """Not by a signal, if it can be helped: an event loop has noticed (`signal.set_wakeup_fd`)."""
    if callable(handler):
        handler(number, None)
    elif handler is signal.SIG_DFL:
        signal.raise_signal(number)


def forget_child(child: BaseProcess) -> None:
    """In a fork of its parent: Python ends daemonic children at exit, and this one is a sibling."""
    known: set[BaseProcess] = getattr(process, "_children", set())
    known.discard(child)


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

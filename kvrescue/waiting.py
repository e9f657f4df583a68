"""Waiting in a thread, such that Ctrl-C is heard.

A signal that arrives just before a thread blocks, or that the system hands to another thread,
wakes nobody: Python runs its handler when the main thread runs again, and that waits. So every wait
without a limit is one of short turns.
"""

from __future__ import annotations

import concurrent.futures
import queue
from typing import Final, TypeVar

__all__ = ["TURN", "next_of", "until_done", "value_of"]

T = TypeVar("T")

TURN: Final = 0.5
"""Seconds after which a waiting thread looks up."""


def until_done(future: concurrent.futures.Future[T]) -> None:
    """Block until a future is done, whatever came of it."""
    while not future.done():
        concurrent.futures.wait([future], TURN)


def value_of(future: concurrent.futures.Future[T]) -> T:
    """`future.result()`."""
    until_done(future)
    return future.result()


def next_of(source: queue.SimpleQueue[T]) -> T:
    """`source.get()`."""
    while True:
        try:
            return source.get(timeout=TURN)
        except queue.Empty:
            continue

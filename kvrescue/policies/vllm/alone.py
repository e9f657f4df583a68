"""One at a time: what is current in vLLM (its configuration, forward context, groups of ranks, even
stdout while they connect) is global to the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from kvrescue.waiting import TURN

__all__ = ["alone", "alone_on_loop", "in_some_turn"]

T = TypeVar("T")

MOMENT: Final = 0.002
"""Seconds for which an event loop may stand still while another thread has the turn."""


class _Turns:
    """Who has the turn. Forks begin anew: the thread that has it is not in them."""

    def __init__(self) -> None:
        self.lock: Final = threading.RLock()
        self.depth = 0
        """Of turns within a turn; whoever holds the lock counts."""
        self.waiting: Final[deque[Callable[[], None]]] = deque()
        """What is to be done in some turn."""

    def take(self, seconds: float) -> bool:
        if not self.lock.acquire(timeout=seconds):
            return False
        self.depth += 1
        return True

    def give_back(self) -> None:
        self.depth -= 1
        self.lock.release()
        self.catch_up()

    def catch_up(self) -> None:
        """Do what waits, unless somebody has the turn, who then does it at its end."""
        while self.waiting and self.lock.acquire(blocking=False):
            try:
                if self.depth:
                    return
                with contextlib.suppress(IndexError):  # a collection did it meanwhile
                    _do(self.waiting.popleft())
            finally:
                self.lock.release()


def _do(action: Callable[[], None]) -> None:
    """Its failure is told, as that of a finalizer, and nothing to whoever has the turn."""
    try:
        action()
    except Exception:
        sys.excepthook(*sys.exc_info())


_turns = _Turns()


def _anew() -> None:
    global _turns
    _turns = _Turns()


os.register_at_fork(after_in_child=_anew)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No other thread builds, steps or ends an engine of vLLM meanwhile; waits for its turn."""
    turns = _turns
    while not turns.take(TURN):
        pass
    try:
        yield
    finally:
        turns.give_back()


async def alone_on_loop(action: Callable[[], T]) -> T:
    """`action()` in a turn. The event loop goes on while another thread has it, and whoever waits
    may be cancelled; nothing is done then."""
    turns = _turns
    while not turns.take(MOMENT):  # noqa: ASYNC110 - turns are waited for
        await asyncio.sleep(0)
    try:
        return action()
    finally:
        turns.give_back()


def in_some_turn(action: Callable[[], None]) -> None:
    """Do it now, if nobody has the turn, and else at the end of the present one, in its thread.

    For finalizers: a collection of garbage may call them anywhere, in a turn of this thread, or
    where another one that has the turn waits for this thread; so they can neither go ahead nor
    wait.
    """
    _turns.waiting.append(action)
    _turns.catch_up()

"""One at a time: what is current in vLLM (its configuration, forward context, groups of ranks, even
stdout while they connect) is global to the process.

Whoever wants a turn has a ticket in a line, and the first in the line begins. Tickets come and go
by single calls of a deque, between which neither Ctrl-C nor another thread comes, and not under a
lock: finalizers want turns, too, and a collection of garbage may call them in the middle of
everything here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["alone", "alone_on_loop", "in_some_turn"]

T = TypeVar("T")

PATIENCE: Final = 0.1
"""Seconds after which somebody whose turn it is, and who does not begin, is passed over: the event
loop that it waits on has been stopped, or does something else. Twice as many, each time that it has
been, if it comes again."""
LONGEST: Final = 16
"""Times that."""

PASSED_OVER: Final = -1
"""In place of a thread."""


class _Ticket:
    """A place in the line."""

    def __init__(self, wake: Callable[[], None], patience: float = 0) -> None:
        self.wake: Final = wake
        self.patience: Final = patience or PATIENCE
        self.called: float | None = None
        """When it was told that it is its turn, by the clock."""
        self._fate: Final[dict[str, int]] = {}

    def late(self) -> bool:
        return self.called is not None and time.monotonic() - self.called > self.patience

    def fate(self, wish: int) -> int:
        """The thread that has begun, or `PASSED_OVER`: what the first who asks wishes."""
        return self._fate.setdefault("", wish)

    @property
    def thread(self) -> int | None:
        """That has begun."""
        return self._fate.get("")


class _Turns:
    def __init__(self) -> None:
        self.line: Final[deque[_Ticket]] = deque()
        self.due: Final[deque[Callable[[], None]]] = deque()
        """What is to be done in some turn."""

    def first(self) -> _Ticket | None:
        try:
            return self.line[0]
        except IndexError:
            return None

    def own(self) -> bool:
        """Whether this thread has the turn."""
        first = self.first()
        return first is not None and first.thread == threading.get_ident()

    def begin(self, ticket: _Ticket) -> bool:
        """Whether its turn begins. Does what somebody who was interrupted has left undone: tells
        the first, and removes it if it was passed over."""
        first = self.first()
        if first is ticket:
            fate = ticket.fate(threading.get_ident())
        elif first is not None and first.late():
            fate = first.fate(PASSED_OVER)
        else:
            self.call()
            return False
        if fate == PASSED_OVER:
            with contextlib.suppress(ValueError):  # by another, too
                self.line.remove(first)
            self.call()
        return first is ticket and fate != PASSED_OVER

    def renewed(self, ticket: _Ticket) -> _Ticket:
        """The same, or one at the end of the line if it was passed over: others wait longer for
        that, as its loop may do something else for as long again."""
        if ticket in self.line:
            return ticket
        ticket = _Ticket(ticket.wake, min(2 * ticket.patience, LONGEST * PATIENCE))
        self.line.append(ticket)
        return ticket

    def call(self) -> None:
        """Tell the first that it is its turn. Who is not told looks once in a `PATIENCE`."""
        first = self.first()
        if first is not None and first.called is None:
            first.called = time.monotonic()
            first.wake()

    def catch_up(self) -> None:
        """Do what is due, unless somebody has the turn or will, who then does it at its end."""
        while self.due and not self.line:
            ticket = _Ticket(_nothing)
            try:
                self.line.append(ticket)
                if self.begin(ticket):
                    while self.due:
                        _do(self.due.popleft())
            finally:
                if ticket in self.line:
                    self.line.remove(ticket)
                self.call()


def _nothing() -> None:
    pass


def _do(action: Callable[[], None]) -> None:
    """Its failure is told, as that of a finalizer, and nothing to whoever has the turn."""
    try:
        action()
    except Exception:
        sys.excepthook(*sys.exc_info())


_turns = _Turns()


def _anew() -> None:
    """In a fork, where those who wait are not."""
    global _turns
    _turns = _Turns()


os.register_at_fork(after_in_child=_anew)


def alone(action: Callable[[], T]) -> T:
    """`action()` in a turn: no other thread builds, steps or ends an engine of vLLM meanwhile.

    No context manager of Python's: those lose an exit when Ctrl-C comes while they enter.
    """
    turns = _turns
    if turns.own():
        return action()
    called = threading.Event()
    ticket = _Ticket(called.set)
    try:
        turns.line.append(ticket)
        while not turns.begin(ticket):
            called.wait(PATIENCE)
            called.clear()
            ticket = turns.renewed(ticket)
        return action()
    finally:
        if ticket in turns.line:  # not by a function of ours, into which Ctrl-C might come
            turns.line.remove(ticket)
        turns.call()
        turns.catch_up()


async def alone_on_loop(action: Callable[[], T]) -> T:
    """`action()` in a turn. The event loop goes on while another thread has it, and whoever waits
    may be cancelled; nothing is done then."""
    turns = _turns
    if turns.own():
        return action()
    loop, called = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # it was closed
            loop.call_soon_threadsafe(called.set)

    ticket = _Ticket(wake)
    try:
        turns.line.append(ticket)
        while not turns.begin(ticket):
            look = loop.call_later(PATIENCE, called.set)
            try:
                await called.wait()
            finally:
                look.cancel()
            called.clear()
            ticket = turns.renewed(ticket)
        return action()
    finally:
        if ticket in turns.line:
            turns.line.remove(ticket)
        turns.call()
        turns.catch_up()


def in_some_turn(action: Callable[[], None]) -> None:
    """Do it now, if nobody has the turn, and else at the end of somebody's, in its thread.

    For finalizers: a collection of garbage may call them anywhere, in a turn of this thread, or
    where another one that has the turn waits for this thread; so they can neither go ahead nor
    wait.
    """
    _turns.due.append(action)
    _turns.catch_up()

"""Lifelines: a rank ends with its parent, also in the middle of what never ends.

vLLM's ranks have a thread that waits for the end of their parent. It does not get to run while the
rank computes with what a CPU's ranks share and waits for one that has ended: that wait is one of
C++, which neither sleeps nor lets Python go on. Here the system ends the rank: it sends SIGIO to
whoever listens on a named pipe that nobody can write to any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

__all__ = ["Lifeline", "hold_on"]

PLACE: Final = "KVRESCUE_LIFELINE"
"""Variable of ranks: their parent's number, a colon, and the path of the pipe."""


class Lifeline:
    """The parent's end. Whoever holds it lives, or has not closed it.

    Args:
        folder: in which the pipe is made.
    """

    def __init__(self, folder: str) -> None:
        path = Path(folder, "lifeline")
        os.mkfifo(path, 0o600)
        # For reading, too, or it would have to wait for ranks to open theirs.
        self._end: int | None = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.variables: Final = {PLACE: f"{os.getpid()}:{path}"}
        """For the ranks."""

    def close(self) -> None:
        """Ends the ranks that are left; in a fork, it leaves them to their parent. Idempotent."""
        end, self._end = self._end, None
        if end is not None:
            with contextlib.suppress(OSError):
                os.close(end)


def hold_on() -> None:
    """In a rank, first of all; does nothing in another process."""
    parent, _, path = os.environ.get(PLACE, "").partition(":")
    if not path or os.getppid() != int(parent):
        return
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # until the rank ends
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    if os.getppid() != int(parent):  # it ended before this listened
        os._exit(1)

"""One at a time: what is current in vLLM (its configuration, forward context, groups of ranks, even
stdout while they connect) is global to the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from kvrescue.waiting import TURN

__all__ = ["alone"]

_LOCK: Final = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No other thread builds, steps or ends an engine of vLLM meanwhile; waits for its turn."""
    while not _LOCK.acquire(timeout=TURN):
        pass
    try:
        yield
    finally:
        _LOCK.release()

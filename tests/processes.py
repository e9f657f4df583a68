"""Other processes, as the system tells of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["alive", "children", "orphans", "wait_for_end"]


def alive(number: int | str) -> bool:
    """Whether a process runs; one that has ended may wait for somebody who asks how."""
    try:
        told = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return told.rpartition(")")[2].split()[0] != "Z"


def children(number: int) -> list[str]:
    """Numbers of the processes that a process's main thread has started, oldest first."""
    return Path(f"/proc/{number}/task/{number}/children").read_text().split()


def wait_for_end(numbers: Iterable[int | str], seconds: float = 600) -> None:
    """Fails unless they all end in time."""
    deadline = time.monotonic() + seconds
    while running := [number for number in numbers if alive(number)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.05)


def orphans() -> set[str]:
    """Shared memory and semaphores that have a name in the system and no process that uses them."""
    entries = {entry.name: entry.inode() for entry in os.scandir("/dev/shm")}
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended
            for line in maps.read_text().splitlines():
                if "/dev/shm/" in line:
                    used.add(int(line.split()[4]))
    return {name for name, inode in entries.items() if inode not in used}

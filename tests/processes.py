"""Other processes, as the system tells of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Set
from pathlib import Path

__all__ = ["alive", "children", "named", "shared", "wait_for_end"]


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


def shared(number: int | str) -> set[int]:
    """Inodes of the shared memory and semaphores that a process uses; those have passing names."""
    try:
        maps = Path(f"/proc/{number}/maps").read_text()
    except OSError:  # it has ended
        return set()
    fields = [line.split() for line in maps.splitlines()]
    return {int(found[4]) for found in fields if found[5:] and "/dev/shm/" in found[5]}


def named(inodes: Set[int]) -> list[str]:
    """What of it has a name in the system."""
    return [entry.path for entry in os.scandir("/dev/shm") if entry.inode() in inodes]

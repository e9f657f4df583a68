"""Files that are the old ones or the new ones, whatever happens in between; and whose they are."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from kvrescue.errors import RunError

__all__ = ["locked", "write_whole"]


def locked(path: Path) -> BinaryIO:
    """The file, locked for as long as it is open or its process lives.

    Raises:
        RunError: another process has it.
        OSError: it cannot be opened.
    """
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunError(
            f"another process writes to {str(path.parent)!r}: wait for it, or choose another folder"
        ) from None
    return file


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the file, then put it in its place.

    Raises:
        OSError: it cannot be written; the old file, if any, is still there.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)

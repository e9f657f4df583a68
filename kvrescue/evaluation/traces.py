"""Traces on disk: the events of trajectories as JSON lines, compressed or not."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kvrescue.errors import ConfigError, RunError
from kvrescue.evaluation.files import write_whole
from kvrescue.events import Event, as_dict, from_dict

__all__ = ["read_events", "write_events"]

_GZIP: Final = b"\x1f\x8b"


def read_events(path: str | os.PathLike[str], *, whole: bool = False) -> Iterator[Event]:
    """The events of a file that `kvrescue solve --trace` or a run has written.

    Args:
        path: JSON lines, compressed with gzip or not.
        whole: it was written at once, so that an end that is missing is damage; otherwise a last
            line that an interruption has torn is left out.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: it cannot be read, is damaged, or is no trace.
    """
    where = str(path)
    try:
        yield from _events(Path(path), whole)
    except FileNotFoundError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RunError(f"the trace {where!r} is damaged: {error}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"the trace {where!r} cannot be read: {reason}") from error
    except RunError as error:
        raise RunError(f"the trace {where!r} is damaged: {error}") from error


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Write a compressed trace; whatever happens, the file is whole or not there."""
    lines = (json.dumps(as_dict(event), separators=(",", ":")) + "\n" for event in events)
    write_whole(path, gzip.compress("".join(lines).encode(), mtime=0))


def _events(path: Path, whole: bool) -> Iterator[Event]:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    number = 0
    with gzip.open(path, "rb") if packed else path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                data = json.loads(line)
                if not isinstance(data, dict):
                    raise ConfigError("not an event")
                event = from_dict(data)
            except (ValueError, RecursionError, ConfigError) as error:
                if not whole and not line.endswith(b"\n") and isinstance(error, ValueError):
                    return
                raise RunError(f"line {number}: {_reason(error)}") from error
            yield event
    if whole and not number:
        raise RunError("it is empty")


def _reason(error: Exception) -> str:
    """Without the line that JSON counts itself: it sees one at a time."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return str(error)

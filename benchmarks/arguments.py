"""Command lines of single benchmarks: what they are called, and what they take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from kvrescue.errors import KVRescueError

__all__ = ["at_least", "folder", "parser_of", "told"]


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.NAME`, described by the first line of its module."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=(doc or "").split("\n")[0]
    )


def at_least(least: int) -> Callable[[str], int]:
    """What turns an argument into a whole number of at least that much."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"{text!r}: expected a whole number of at least {least}"
            )
        return value

    return number


def folder(text: str) -> Path:
    """A path that was given: an empty one would be the folder that one stands in."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a folder")
    return Path(text)


def told(work: Callable[[], int | None]) -> int:
    """Exit status of `work`; an error of ours is a line on stderr."""
    try:
        return work() or 0
    except KVRescueError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code

"""Where output goes: answers to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

__all__ = ["counted", "emit_json", "human", "messages", "source_style"]

_PLAIN_WIDTH = 120
"""Columns where the width of the terminal is unknown (a pipe, a file)."""

_SOURCES = {"base": "cyan", "helper": "magenta"}
_OTHER_SOURCES = ("green", "yellow", "blue", "bright_cyan", "bright_magenta")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would exit with 1; the reader that left is dealt with in one place."""
        raise BrokenPipeError


def human() -> Console:
    """For text that was asked for."""
    return _console(stderr=False)


def messages() -> Console:
    """For errors and progress."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = _Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)
    return console


def emit_json(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def counted(number: int, one: str, many: str = "") -> str:
    """A number and what it counts: `1 step`, `2 steps`; `many` is what is no `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def source_style(name: str, names: tuple[str, ...]) -> str:
    """The colour of a proposer."""
    if name in _SOURCES:
        return _SOURCES[name]
    others = [other for other in names if other not in _SOURCES]
    place = others.index(name) if name in others else 0
    return _OTHER_SOURCES[place % len(_OTHER_SOURCES)]

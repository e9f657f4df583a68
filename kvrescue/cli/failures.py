"""Failures: what the user sees of an error, and the exit code that tells scripts."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import typer
from rich.text import Text
from typer.core import TyperGroup

from kvrescue import errors
from kvrescue.cli.console import emit_json, messages
from kvrescue.errors import KVRescueError

__all__ = ["DEBUG_VARIABLE", "CommandGroup", "exit_codes"]

DEBUG_VARIABLE: Final = "KVRESCUE_DEBUG"

USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


def exit_codes() -> dict[int, str]:
    """What every exit code means."""
    codes = {
        0: "Success",
        1: "Failure: something unexpected (--debug shows where), or a check of `doctor` failed.",
        USAGE: "UsageError: an unknown option, or options that exclude one another.",
        INTERRUPTED: "Interrupted: Ctrl-C; a trace keeps everything up to that moment.",
        BROKEN_PIPE: "BrokenPipe: the reader of the output went away.",
    }
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, KVRescueError):
            summary = (inspect.getdoc(error) or "").partition("\n\n")[0]
            codes.setdefault(error.exit_code, f"{error.__name__}: {' '.join(summary.split())}")
    return dict(sorted(codes.items()))


class CommandGroup(TyperGroup):
    """The root command: turns every error into a line on stderr and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        if not options.get("standalone_mode", True):
            return super().main(arguments, *rest, **options)
        _forgive_encodings()
        try:
            code = super().main(arguments, *rest, **(options | {"standalone_mode": False}))
            sys.stdout.flush()
        except Exception as error:
            code = _report(error, arguments)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Nobody reads on; what is still buffered must not fail at exit, either.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None


def _report(error: Exception, arguments: Sequence[str]) -> int:
    """Tell of an error; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    options = list(arguments)
    if "--" in options:
        options = options[: options.index("--")]
    usage = callable(getattr(error, "format_message", None))  # click's, or typer's copy of it
    if usage:
        kind, message, code = "UsageError", error.format_message(), USAGE  # type: ignore[attr-defined]
    elif isinstance(error, KVRescueError):
        kind, message, code = type(error).__name__, str(error), error.exit_code
    else:
        kind, message, code = type(error).__name__, str(error) or repr(error), 1
    if "--json" in options:
        emit_json({"error": {"type": kind, "message": message, "exit_code": code}})
    if usage:
        error.show(file=sys.stderr)  # type: ignore[attr-defined]
        return code
    if not isinstance(error, KVRescueError):
        message = f"unexpected {kind}: {message} (--debug shows where)"
    messages().print(Text(f"error: {message}", style="red"), soft_wrap=True)
    if "--debug" in options or os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    return code


def _forgive_encodings() -> None:
    """A terminal without Unicode shows question marks instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            with contextlib.suppress(OSError, ValueError):
                reconfigure(errors="replace")

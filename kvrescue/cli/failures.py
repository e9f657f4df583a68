"""Failures: what the user sees of an error, and the exit code that tells scripts."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final, NoReturn

import typer
from pydantic import ValidationError
from rich.text import Text
from typer.core import TyperGroup

from kvrescue import errors
from kvrescue.cli.console import emit_json, messages
from kvrescue.errors import KVRescueError, nearest
from kvrescue.faults import translated

__all__ = ["DEBUG_VARIABLE", "CommandGroup", "SubGroup", "exit_codes"]

DEBUG_VARIABLE: Final = "KVRESCUE_DEBUG"

USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
TERMINATED: Final = 143


def exit_codes() -> dict[int, str]:
    """What every exit code means."""
    codes = {
        0: "Success",
        1: "Failure: something unexpected (--debug shows where), or a check of `doctor` failed.",
        USAGE: "UsageError: an unknown command or option, a missing or malformed argument, or "
        "options that exclude one another.",
        INTERRUPTED: "Interrupted: Ctrl-C; a trace keeps everything up to that moment.",
        BROKEN_PIPE: "BrokenPipe: the reader of the output went away.",
        TERMINATED: "Terminated: SIGTERM; worker processes are ended, a trace is kept.",
    }
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, KVRescueError):
            summary = (inspect.getdoc(error) or "").partition("\n\n")[0]
            codes.setdefault(error.exit_code, f"{error.__name__}: {' '.join(summary.split())}")
    return dict(sorted(codes.items()))


class SubGroup(TyperGroup):
    """A group of commands that knows the nearest name to an unknown one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


class CommandGroup(SubGroup):
    """The root command: turns every error into a line on stderr and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        if not options.get("standalone_mode", True):
            return super().main(arguments, *rest, **options)
        _forgive_encodings()
        try:
            with _clean_termination():
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
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show(file=sys.stderr)  # type: ignore[attr-defined]
        return USAGE
    usage = callable(getattr(error, "format_message", None))  # click's, or typer's copy of it
    if usage:
        kind, message, code = "UsageError", _usage(error), USAGE
    elif isinstance(error, KVRescueError):
        kind, message, code = type(error).__name__, str(error), error.exit_code
    else:
        kind, message, code = type(error).__name__, str(error) or repr(error), 1
    if "--json" in options:
        with contextlib.suppress(OSError):  # a full disk, say: stderr still tells
            emit_json({"error": {"type": kind, "message": message, "exit_code": code}})
            sys.stdout.flush()
    if not usage and not isinstance(error, KVRescueError):
        message = f"unexpected {kind}: {message} (--debug shows where)"
    for line in message.splitlines():
        messages().print(Text(f"error: {line}", style="red"), soft_wrap=True)
    if "--debug" in options or os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    return code


def _usage(error: Any) -> str:
    """A usage error in one line, with the nearest name and where help is."""
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    message = " ".join(error.format_message().split()).removeprefix("Invalid value: ")
    if type(error).__name__ == "NoSuchOption" and context is not None:
        params = context.command.get_params(context)
        names = [name for p in params for name in (*p.opts, *p.secondary_opts) if name[:2] == "--"]
        message = f"no option {option}{nearest(str(option), names)}"
    elif isinstance(error.__cause__, ValidationError) and getattr(error, "param", None):
        item = error.__cause__.errors(include_url=False)[0]
        told = translated(None, item)["type"]
        message = f"{error.param.opts[0]} = {item['input']!r}: {told}"
    help_ = f" (see {context.command_path} --help)" if context is not None else ""
    return f"{message[:1].lower()}{message[1:].removesuffix('.')}{help_}"


@contextlib.contextmanager
def _clean_termination() -> Iterator[None]:
    """SIGTERM ends the program like Ctrl-C does: with its worker processes, and quietly.

    A second one ends it at once. Somebody else's handler, and a call outside the main thread, where
    there can be none, are left alone.
    """

    def end(_: int, __: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SystemExit(TERMINATED)

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    try:
        signal.signal(signal.SIGTERM, end)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _forgive_encodings() -> None:
    """A terminal without Unicode shows question marks instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            with contextlib.suppress(OSError, ValueError):
                reconfigure(errors="replace")

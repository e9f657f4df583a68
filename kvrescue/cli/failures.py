"""Failures: what the user sees of an error, and the exit code that tells scripts."""

from __future__ import annotations

import contextlib
import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import typer
from pydantic import ValidationError
from rich.text import Text
from typer.core import TyperGroup

from kvrescue import errors
from kvrescue.cli.console import emit_json, messages
from kvrescue.cli.interrupts import HUNG_UP, INTERRUPTED, TERMINATED, Interruption
from kvrescue.errors import KVRescueError, nearest
from kvrescue.faults import translated

__all__ = ["DEBUG_VARIABLE", "CommandGroup", "SubGroup", "exit_codes"]

DEBUG_VARIABLE: Final = "KVRESCUE_DEBUG"

_SHOWN: Final = 40
"""Characters of a value that are shown."""

USAGE: Final = 2
BROKEN_PIPE: Final = 141


def exit_codes() -> dict[int, str]:
    """What every exit code means."""
    codes = {
        0: "Success",
        1: "Failure: something unexpected (--debug shows where), or a check of `doctor` failed.",
        USAGE: "UsageError: an unknown command or option, a missing or malformed argument, or "
        "options that exclude one another.",
        HUNG_UP: "Terminated: SIGHUP, the terminal was closed; otherwise as with SIGTERM.",
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
        code = None
        interruption = Interruption()
        try:
            with interruption:
                code = super().main(arguments, *rest, **(options | {"standalone_mode": False}))
            sys.stdout.flush()
        except Exception as error:
            if interruption.code is None:
                code = _report(error, arguments)
            else:  # what became of it on its way
                code = interruption.code
                _show_where(error, arguments)
        except SystemExit:
            if interruption.code is None:
                raise
            code = interruption.code
        if interruption.code is not None:
            # A command that ended nevertheless has printed its document.
            if code == interruption.code and "--json" in _options(arguments):
                _emit_error(interruption.kind, interruption.message, code)
            code = interruption.code
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(BROKEN_PIPE) from None


def _report(error: Exception, arguments: Sequence[str]) -> int:
    """Tell of an error; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return BROKEN_PIPE
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show(file=sys.stderr)  # type: ignore[attr-defined]
        return USAGE
    usage = callable(getattr(error, "format_message", None))  # click's, or typer's copy of it
    if usage:
        kind, message, code = "UsageError", _usage(error, arguments), USAGE
    elif isinstance(error, KVRescueError):
        kind, message, code = type(error).__name__, str(error), error.exit_code
    else:
        kind, message, code = type(error).__name__, str(error) or repr(error), 1
    if "--json" in _options(arguments):
        _emit_error(kind, message, code)
    if not usage and not isinstance(error, KVRescueError):
        message = f"unexpected {kind}: {message} (--debug shows where)"
    for line in message.splitlines():
        messages().print(Text(f"error: {line}", style="red"), soft_wrap=True)
    _show_where(error, arguments)
    return code


def _options(arguments: Sequence[str]) -> Sequence[str]:
    """Arguments that may be options: what follows -- is none."""
    found = list(arguments)
    return found[: found.index("--")] if "--" in found else found


def _emit_error(kind: str, message: str, code: int) -> None:
    try:
        emit_json({"error": {"type": kind, "message": message, "exit_code": code}})
        sys.stdout.flush()
    except OSError:  # a full disk, or a reader that went away: stderr still tells
        _discard_stdout()


def _discard_stdout() -> None:
    """Nobody reads on; what is still buffered must not fail at exit, either."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_where(error: BaseException, arguments: Sequence[str]) -> None:
    """With --debug, where an error comes from."""
    if "--debug" in _options(arguments) or os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)


def _usage(error: Any, arguments: Sequence[str]) -> str:
    """A usage error in one line, with the nearest name and where help is."""
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    message = " ".join(error.format_message().split()).removeprefix("Invalid value: ")
    if type(error).__name__ == "NoSuchOption" and context is not None:
        params = context.command.get_params(context)
        names = [name for p in params for name in (*p.opts, *p.secondary_opts) if name[:2] == "--"]
        name = str(option)
        known = nearest(name, names) if name.lstrip("-")[:1].isalpha() else ""
        message = f"no option {name}{known}{_dashed(name, context, arguments)}"
    elif isinstance(error.__cause__, ValidationError) and getattr(error, "param", None):
        item = error.__cause__.errors(include_url=False)[0]
        told = translated(None, item)["type"]
        message = f"{error.param.opts[0]} = {item['input']!r}: {told}"
    help_ = f" (see {context.command_path} --help)" if context is not None else ""
    return f"{message[:1].lower()}{message[1:].removesuffix('.')}{help_}"


def _dashed(option: str, context: Any, arguments: Sequence[str]) -> str:
    """The way out of a value that begins with a dash, such as `-3`, and was taken for an option;
    empty where it must be a misspelt one."""
    letter = option.lstrip("-")[:1].isalpha()
    takes_values = any(p.param_type_name == "argument" for p in context.command.get_params(context))
    if letter and (option.startswith("--") or not takes_values):
        return ""
    # Of `-30`, the parser names `-3`.
    given = next((given for given in _options(arguments) if given.startswith(option)), option)
    shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}..."
    return f"; a value that begins with a dash stands after --, as in `-- {shlex.quote(shown)}`"


def _forgive_encodings() -> None:
    """A terminal without Unicode shows question marks instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            with contextlib.suppress(OSError, ValueError):
                reconfigure(errors="replace")

"""`kvrescue solve`: one question, step by step, as it happens."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from kvrescue.cli.calibrated import CalibrationFile, calibrated
from kvrescue.cli.console import emit_json, human
from kvrescue.cli.engines import EngineName, chosen_engine, prepare_engine
from kvrescue.cli.options import (
    Config,
    Json,
    Overrides,
    PluginList,
    Preset,
    chosen_source,
    load_plugins,
)
from kvrescue.errors import InputError

if TYPE_CHECKING:
    from kvrescue.selector import Observer
    from kvrescue.types import Question, Solution

__all__ = ["solve"]


def solve(
    question: Annotated[
        str | None, typer.Argument(help="The question; - reads it from standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the question here.")
    ] = None,
    preset: Preset = None,
    config: Config = None,
    engine: EngineName = None,
    overrides: Overrides = None,
    plugin: PluginList = None,
    calibration: CalibrationFile = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="S", help="Of the run (default: as configured).")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.jsonl",
            help="Append every event, as it happens, as JSON lines.",
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Show that work is going on (terminals only).")
    ] = True,
    json: Json = False,
) -> None:
    """Solve one question and show how: every step with its source, score and rivals.

    The question comes from the argument, from --file or from standard input. For one that the
    preset tiny understands: `kvrescue solve "$(kvrescue problem)"`.
    """
    from kvrescue.config import load_config
    from kvrescue.events import CandidateFinished, TrajectoryFinished, solution_as_dict
    from kvrescue.pipeline import Rescue

    source = chosen_source(preset, config)
    asked = _question(question, file)
    load_plugins(plugin)
    with _tracing(trace) as observers:
        chosen = chosen_engine(engine)
        loaded = load_config(source, overrides or (), engine=chosen)
        known = None
        if calibration is not None:
            from kvrescue.calibration import check_tokenizer

            loaded, known = calibrated(loaded, calibration)
        prepare_engine(loaded)
        view = None
        if not json:
            from kvrescue.cli.live import LiveView

            view = LiveView(human(), live=live)
        solution: Solution | None = None
        with (
            view or contextlib.nullcontext(),
            Rescue.from_config(loaded, observers=observers) as rescue,
        ):
            for event in rescue.stream(asked, seed):
                if known is not None and isinstance(event, CandidateFinished):
                    check_tokenizer(known, event.candidate)
                if isinstance(event, TrajectoryFinished):
                    solution = event.solution
                if view is not None:
                    view.show(event)
    if json and solution is not None:
        emit_json(solution_as_dict(solution))


@contextlib.contextmanager
def _tracing(path: Path | None) -> Iterator[list[Observer]]:
    """Observers that write the trace; a path that cannot be written fails before any work."""
    if path is None:
        yield []
        return
    from kvrescue.events import TraceWriter

    with TraceWriter(path) as writer:
        yield [writer]


def _question(argument: str | None, file: Path | None) -> Question:
    """The question from its one source.

    Line breaks around it do not belong to it: they come from `echo` and editors.
    """
    from kvrescue.questions import as_question

    if argument is not None and file is not None:
        raise typer.BadParameter("give the question as an argument or with --file, not both")
    if argument is not None and argument != "-":
        return as_question(argument.strip("\r\n"))
    if file is not None:
        try:
            with file.open(encoding="utf-8-sig") as stream:
                return as_question(_read(stream))
        except OSError as error:
            raise InputError(
                f"the question's file {str(file)!r} cannot be read: {error.strerror or error}"
            ) from error
        except UnicodeDecodeError as error:
            raise InputError(f"the question's file {str(file)!r} is not UTF-8 text") from error
    if argument is None and sys.stdin.isatty():
        raise InputError("no question: give it as an argument, with --file or on standard input")
    try:
        text = _read(sys.stdin)
    except UnicodeDecodeError as error:
        raise InputError("the question on standard input is not UTF-8 text") from error
    if not text.strip():
        raise InputError("no question: there was no argument, no --file, and no standard input")
    return as_question(text)


def _read(stream: IO[str]) -> str:
    """A whole question and no more: a file of gigabytes is refused, not read."""
    from kvrescue.questions import MAX_QUESTION_CHARACTERS

    text = stream.read(MAX_QUESTION_CHARACTERS + 3).removeprefix("\ufeff").strip("\r\n")
    if len(text) > MAX_QUESTION_CHARACTERS:
        raise InputError(
            f"the question has more than {MAX_QUESTION_CHARACTERS} characters, the limit"
        )
    return text

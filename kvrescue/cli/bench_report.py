"""`kvrescue bench report`: a run's tables and figures, finished or not."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from kvrescue.cli.console import human, messages
from kvrescue.cli.options import Json

__all__ = ["report", "warn_of_damaged"]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write (default: RUN/report)."),
    ] = None,
    composition: Annotated[
        str | None,
        typer.Option(
            "--composition",
            metavar="NAME",
            help="Which of the folder's compositions, as the report names them (default: the one "
            "that was run last).",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a run's tables and figures: Markdown, CSV, JSON, PNG and SVG.

    The run may be unfinished; what is missing is shown as -. Shown here is whether the run has the
    shape of the paper's results. Figures need the extra `eval`.
    """
    from rich.table import Table
    from rich.text import Text

    from kvrescue.evaluation.runs.folder import Run
    from kvrescue.evaluation.tables.report import write_report
    from kvrescue.evaluation.tables.table import shown_as

    found = Run.read(run)
    files = write_report(found, run / "report" if out is None else out, composition)
    warn_of_damaged(run / name for name in files.damaged)
    if json:
        sys.stdout.write(files.data.read_text(encoding="utf-8"))
        return
    shape = files.shape
    table = Table(title=shape.title, show_lines=True)
    for column in shape.columns[1:]:
        table.add_column(column.label)
    for row in shape.rows:
        pairs = list(zip(shape.columns, row, strict=True))[1:]
        table.add_row(*(Text(shown_as(column, value)) for column, value in pairs))
    console = human()
    console.print(table)
    console.print(f"written: {files.report}", markup=False, soft_wrap=True)


def warn_of_damaged(traces: Iterable[Path]) -> None:
    """Say which traces were left out, and what to do about it."""
    for path in traces:
        text = f"the trace {str(path)!r} is damaged and left out; delete it"
        messages().print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)

"""`kvrescue bench trajectories`: the trajectory report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvrescue.cli.bench_report import warn_of_damaged
from kvrescue.cli.console import emit_json, human
from kvrescue.cli.options import Json
from kvrescue.errors import InputError

__all__ = ["trajectories"]


def trajectories(
    run: Annotated[Path | None, typer.Argument(help="The folder of a run.")] = None,
    other: Annotated[
        Path | None, typer.Argument(help="Another run, to compare the first one with.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.html",
            help="Where the page goes (default: trajectories.html in the run's folder).",
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            "--trace",
            metavar="FILE.jsonl",
            help="A trace of `kvrescue solve`, beside runs or alone; may be repeated.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write one page that shows every trajectory of a run, step by step.

    For each step: its candidates with source, score or the detector's measured value, what the
    caches hold, and tokens spent and saved. Any two settings, also of two runs, can be compared up
    to the first step that differs. The page is one file, asks for nothing and needs no server.
    """
    from kvrescue.evaluation.runs.folder import Run
    from kvrescue.evaluation.trajectories.data import collect
    from kvrescue.evaluation.trajectories.page import write_page

    folders = [path for path in (run, other) if path is not None]
    if not folders and not trace:
        raise InputError("no trajectories: name the folder of a run, or a trace with --trace")
    report = collect([Run.read(folder) for folder in folders], trace or ())
    if out is None:
        out = (run or Path()) / "trajectories.html"
    size = write_page(report, out)
    told = {
        "path": str(out),
        "bytes": size,
        "problems": len(report.chunks),
        "settings": len(report.index["settings"]),
        "trajectories": report.trajectories,
        "traced": report.traced,
        "damaged": [str(path) for path in report.damaged],
    }
    warn_of_damaged(report.damaged)
    if json:
        emit_json(told)
        return
    counts = [
        _counted(len(report.chunks), "problem"),
        _counted(len(report.index["settings"]), "setting"),
        _counted(report.trajectories, "trajectory", "trajectories"),
        f"{report.traced} of them with their steps",
    ]
    human().print(f"{out}: {', '.join(counts)}", soft_wrap=True, markup=False)


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"

"""`kvrescue bench`: measurements, and what the paper measured."""

from __future__ import annotations

from typing import Annotated

import typer

from kvrescue.cli import bench_report, bench_run, bench_trajectories
from kvrescue.cli.console import emit_json, human
from kvrescue.cli.failures import SubGroup
from kvrescue.cli.options import Json

__all__ = ["app"]

app = typer.Typer(cls=SubGroup, no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure methods, and look at what the paper measured."""


app.command()(bench_run.run)
app.command()(bench_report.report)
app.command()(bench_trajectories.trajectories)


@app.command()
def paper(
    cells: Annotated[
        bool, typer.Option("--cells", help="Show the settings of every claim that is a mean.")
    ] = False,
    json: Json = False,
) -> None:
    """Compute the paper's claims again, from its own tables and equations.

    Nothing is measured. `no` marks claims that the paper's own numbers do not give, `-` those that
    rest on figures without numbers.
    """
    from kvrescue.evaluation.paper.check import check_paper

    claims = check_paper()
    if json:
        from dataclasses import asdict

        emit_json([asdict(claim) | {"agrees": claim.agrees} for claim in claims])
    else:
        from kvrescue.cli.paper_view import show_claims

        show_claims(human(), claims, cells=cells)

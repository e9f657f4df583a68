"""The command `kvrescue` and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

import kvrescue
from kvrescue.cli import (
    bench,
    calibrate,
    config,
    cost,
    demo,
    doctor,
    grade,
    plugins,
    problem,
    replay,
    solve,
)
from kvrescue.cli.console import human
from kvrescue.cli.failures import DEBUG_VARIABLE, CommandGroup, exit_codes

__all__ = ["app"]


def _epilog() -> str:
    """The exit codes in short; docs/cli.md has them in full."""
    codes = (f"{code} {meaning.partition(':')[0]}" for code, meaning in exit_codes().items())
    return f"Exit codes: {', '.join(codes)}. docs/cli.md explains them."


app = typer.Typer(
    cls=CommandGroup,
    name="kvrescue",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_epilog(),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        human().print(f"kvrescue {kvrescue.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show where errors come from ({DEBUG_VARIABLE}=1).")
    ] = False,
) -> None:
    """Recover what KV-cache eviction loses, by stepwise composition of policies.

    Start with `kvrescue demo`.
    """


app.command()(demo.demo)
app.command()(solve.solve)
app.command()(replay.replay)
app.command()(problem.problem)
app.command()(grade.grade)
app.command(name="config")(config.show_config)
app.command()(cost.cost)
app.add_typer(bench.app, name="bench")
app.command()(calibrate.calibrate)
app.add_typer(plugins.app, name="plugins")
app.command()(doctor.doctor)

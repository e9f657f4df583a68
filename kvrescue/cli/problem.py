"""`kvrescue problem`: a question that the tiny trio can be asked."""

from __future__ import annotations

from typing import Annotated

import typer

from kvrescue.cli.console import emit_json
from kvrescue.cli.options import Json
from kvrescue.errors import ConfigError

__all__ = ["problem"]


def problem(
    index: Annotated[
        int, typer.Option("--index", "-i", metavar="I", help="Which problem, from 0 on.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Which set of problems.")] = 0,
    answer: Annotated[
        bool, typer.Option("--answer", help="Print its right answer on a second line.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a test problem of the tiny trio.

    These are the problems of `kvrescue demo` with the same seed; none was seen in training.
    Try `kvrescue solve "$(kvrescue problem)"`.
    """
    from kvrescue.evaluation.bill import bill_at

    if index < 0:
        raise ConfigError(f"index = {index}: problems are numbered from 0 on")
    bill = bill_at("test", seed, index)
    if json:
        emit_json(
            {
                "index": index,
                "seed": seed,
                "question": bill.question,
                "answer": str(bill.answer),
                "solution": bill.solution,
            }
        )
        return
    typer.echo(bill.question)
    if answer:
        typer.echo(bill.answer)

"""`kvrescue grade`: is the answer of a response the right one?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from kvrescue.cli.console import emit_json, human
from kvrescue.cli.options import Json
from kvrescue.errors import InputError

__all__ = ["grade"]

_DEFAULT_SECONDS = 5.0


def grade(
    response: Annotated[
        str, typer.Argument(help="The solution with its boxed answer; - reads standard input.")
    ],
    gold: Annotated[str, typer.Argument(help="The right answer.")],
    rule: Annotated[
        str,
        typer.Option("--rule", metavar="exact|math", help="Compare whole numbers, or mathematics."),
    ] = "math",
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help="Processor time for each of the rules."),
    ] = _DEFAULT_SECONDS,
    json: Json = False,
) -> None:
    """Grade a response: its last box against the right answer.

    By the paper's rule and by math-verify, or by whole numbers alone. The exit code is 0 whatever
    the verdict. Try `kvrescue grade '\\boxed{\\frac12}' 0.5`.
    """
    from kvrescue.answers import why_no_answer
    from kvrescue.evaluation.grading import Grade, Grader

    text = _response(response)
    with Grader(workers=1, timeout=timeout) as grader:
        found: Grade = grader.grade(text, gold, rule)
    if json:
        emit_json(found.as_dict())
        return
    table = Table("rule", "verdict")
    troubles = {trouble.rule.value: trouble.detail for trouble in found.troubles}
    for name in ("exact", "paper", "math_verify"):
        verdict = getattr(found, name)
        if verdict is not None:
            said = Text("right", style="green") if verdict else Text("wrong", style="red")
            if name in troubles:
                said.append(f" ({troubles[name]})", style="yellow")
            table.add_row(name, said)
    none = f"none: {why_no_answer(text)}"
    human().print(Text(f"answer: {none if found.answer is None else found.answer}"))
    human().print(table)


def _response(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError("the response on standard input is not UTF-8 text") from error

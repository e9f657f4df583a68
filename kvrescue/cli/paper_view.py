"""The paper's claims for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvrescue.evaluation.paper.claims import Claim

__all__ = ["show_claims"]

_VERDICTS = {True: "yes", False: "no", None: "-"}
_STYLES = {True: "green", False: "red", None: "dim"}
_HEADLINES = 2
"""Claims whose cells are always shown."""


def show_claims(console: Console, claims: Sequence[Claim], *, cells: bool = False) -> None:
    """Print the claims, and the cells behind the first ones (all, with `cells`)."""
    results = [claim for claim in claims if claim.about == "results"]
    costs = [claim for claim in claims if claim.about == "costs"]
    console.print(_claims("What the paper says of its results, from its tables", results))
    console.print()
    console.print(_claims("What it says of costs, from its equations", costs))
    for claim in claims if cells else claims[:_HEADLINES]:
        if len(claim.cells) > 1:
            console.print()
            console.print(Text(claim.text, style="italic"))
            console.print(_cells(claim))
    agreeing = sum(claim.agrees is True for claim in claims)
    differing = sum(claim.agrees is False for claim in claims)
    console.print(
        Text(
            f"{agreeing} of {len(claims)} claims agree, {differing} do not, "
            f"{len(claims) - agreeing - differing} cannot be computed.",
            style="dim",
        )
    )


def _claims(title: str, claims: Sequence[Claim]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("claim", ratio=1)
    for column in ("from", "stated", "computed", "agrees"):
        table.add_column(column, justify="left" if column == "from" else "right", no_wrap=True)
    for claim in claims:
        text = Text(claim.text)
        if claim.note:
            text.append(f"\n{claim.note}", style="dim")
        stated = _number(claim.stated, claim.unit, claim.decimals)
        table.add_row(
            text,
            claim.source,
            stated if claim.relation == "=" else f"{claim.relation} {stated}",
            _computed(claim),
            Text(_VERDICTS[claim.agrees], style=_STYLES[claim.agrees]),
        )
    return table


def _cells(claim: Claim) -> Table:
    table = Table(title_justify="left")
    table.add_column("setting")
    for name in (*claim.cells[0].numbers, "computed"):
        table.add_column(name, justify="right")
    for cell in claim.cells:
        table.add_row(
            cell.where,
            *(f"{number:,}" for number in cell.numbers.values()),
            _number(cell.value, claim.unit, 1),
        )
    blanks = [""] * len(claim.cells[0].numbers)
    table.add_row("mean", *blanks, _computed(claim), style="bold")
    return table


def _computed(claim: Claim) -> str:
    """One digit more than the paper states, of what is no count."""
    number = claim.recomputed
    if number is None:
        return "-"
    return _number(number, claim.unit, 0 if isinstance(number, int) else claim.decimals + 1)


def _number(number: float, unit: str, decimals: int) -> str:
    gap = "" if unit in ("", "x") else " "
    return f"{number:,.{max(0, decimals)}f}{gap}{unit}"

"""`kvrescue doctor`: is everything here that is needed, and does it compute what it should?"""

from __future__ import annotations

from typing import Final

import typer
from rich.table import Table
from rich.text import Text

from kvrescue.cli.console import emit_json, human
from kvrescue.cli.options import Json

__all__ = ["doctor"]

_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(json: Json = False) -> None:
    """Check the installation: versions, devices, extras, the tiny trio, the hub.

    A missing extra or hub is a warning; something that is here and does not work is a failure and
    makes the exit code 1.
    """
    from kvrescue.cli.checks import run_checks

    checks = run_checks()
    broken = any(check.status == "fail" for check in checks)
    if json:
        emit_json(
            {
                "ok": not broken,
                "checks": [
                    {
                        "name": check.name,
                        "status": check.status,
                        "detail": check.detail,
                        "way_out": check.way_out,
                    }
                    for check in checks
                ],
            }
        )
    else:
        table = Table("check", "status", "found")
        for check in checks:
            found = Text(check.detail)
            if check.way_out is not None:
                found.append(f"\n-> {check.way_out}", style="yellow")
            table.add_row(Text(check.name), Text(check.status, style=_STYLES[check.status]), found)
        human().print(table)
    if broken:
        raise typer.Exit(1)

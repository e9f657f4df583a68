"""Calls the command line in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from kvrescue.cli.app import app


class Ran:
    """What a command printed, and its exit code."""

    def __init__(self, *arguments: str, stdin: str | bytes | None = None) -> None:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        self.code = result.exit_code
        self.stdout = result.stdout
        self.stderr = result.stderr

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)


def fails(code: int, kind: str, *arguments: str, stdin: str | bytes | None = None) -> str:
    """Asserts a clean failure, in both forms; returns the message."""
    ran = Ran(*arguments, stdin=stdin)
    assert ran.code == code, (ran.code, ran.stdout, ran.stderr)
    assert all(line.startswith("error: ") for line in ran.stderr.splitlines())
    assert ran.stderr.endswith("\n")
    again = Ran(*arguments, "--json", stdin=stdin)
    assert again.code == code
    error = again.json["error"]
    assert (error["type"], error["exit_code"]) == (kind, code)
    message: str = error["message"]
    assert again.stderr == "".join(f"error: {line}\n" for line in message.splitlines())
    return message

"""The command line: `kvrescue`, or `python -m kvrescue`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command that `sys.argv` names, and exit."""
    from kvrescue.cli.app import app

    app(prog_name="kvrescue")

"""The command line: `kvrescue`, or `python -m kvrescue`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command that `sys.argv` names, and exit."""
    from kvrescue.cli.interrupts import INTERRUPTED, Interruption

    try:
        with Interruption():
            from typer.main import get_command

            from kvrescue.cli.app import app

            command = get_command(app)
    except KeyboardInterrupt:  # while it starts
        raise SystemExit(INTERRUPTED) from None

    command(prog_name="kvrescue")

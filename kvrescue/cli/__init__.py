"""The command line: `kvrescue`, or `python -m kvrescue`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command that `sys.argv` names, and exit."""
    try:
        from kvrescue.cli.app import app
    except KeyboardInterrupt:  # while it starts
        raise SystemExit(130) from None

    app(prog_name="kvrescue")

"""`python -m kvrescue.evaluation.harness`: lm_eval's command line, which then knows `kvrescue`."""

from __future__ import annotations

import sys

from kvrescue.errors import KVRescueError

__all__ = ["main"]


def main() -> None:
    """Run lm_eval on `sys.argv`; our own errors are one line and an exit code, as in `kvrescue`."""
    try:
        _register()  # first: it says what is missing, and how to get it
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except KVRescueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _register() -> None:
    from kvrescue.evaluation.harness import KVRescueLM  # noqa: F401


if __name__ == "__main__":
    main()

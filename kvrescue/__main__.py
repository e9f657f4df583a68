"""`python -m kvrescue` is the `kvrescue` command."""

from __future__ import annotations

from kvrescue.cli import main

if __name__ == "__main__":
    main()

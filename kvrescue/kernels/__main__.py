"""`python -m kvrescue.kernels`: compile every kernel and print what it takes; no GPU is needed."""

from __future__ import annotations

from kvrescue.kernels.resources import table

if __name__ == "__main__":
    print(table())

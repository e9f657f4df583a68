from __future__ import annotations

from pathlib import Path

from benchmarks.ratios import Ratio, Size


def ratios(size: Size) -> list[Ratio]:
    raise ZeroDivisionError(f"oh: {Path(__file__).parents[3]}/somewhere")

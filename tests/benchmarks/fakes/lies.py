"""Ends well without a result."""

from __future__ import annotations

import os

from benchmarks.ratios import Ratio, Size


def ratios(size: Size) -> list[Ratio]:
    os._exit(0)

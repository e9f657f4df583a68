from __future__ import annotations

from tests.benchmarks.fakes.passes import ratios

__all__ = ["ratios"]

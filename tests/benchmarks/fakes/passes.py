from __future__ import annotations

from benchmarks.ratios import Goal, Ratio, Side, Size


def ratios(size: Size) -> list[Ratio]:
    return [
        Ratio(
            name=f"two over one, {size}",
            above=Side("two", (2.0, 4.0, 6.0)),
            below=Side("one", (1.0, 2.0, 2.0)),
            unit="seconds",
            clock="cpu",
            means="That it passes.",
            means_not="more.",
            goal=Goal("at least", 2),
        )
    ]

"""Ratios of two sides that ran in turns, side by side in one process."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, get_args

from kvrescue.errors import ConfigError

__all__ = [
    "CLOCKS",
    "Clock",
    "Goal",
    "Ratio",
    "Side",
    "Size",
    "Turns",
    "in_turns",
    "rate",
    "seconds",
]

Clock: TypeAlias = Literal["cpu", "wall", "none"]
"""CPU time of the process (all threads), time on the wall, or nothing timed at all: a count."""

CLOCKS: Final[Mapping[str, Callable[[], float]]] = {
    "cpu": time.process_time,
    "wall": time.perf_counter,
}
"""Both count seconds."""

Turns: TypeAlias = dict[str, tuple[float, ...]]
"""What was measured, by side, one number per turn."""


class Size(StrEnum):
    """How much is measured."""

    FULL = "full"
    QUICK = "quick"
    """Enough to see whether something moved."""
    SMOKE = "smoke"
    """Enough to see whether it runs; the numbers mean nothing."""

    def pick(self, full: Any, quick: Any, smoke: Any) -> Any:
        """The one of three that is this size's."""
        return {Size.FULL: full, Size.QUICK: quick, Size.SMOKE: smoke}[self]


@dataclass(frozen=True)
class Goal:
    """What a ratio is meant to reach."""

    relation: Literal["at least", "at most", "exactly"]
    value: float

    def met(self, ratio: Ratio) -> bool:
        """By the median; an exact goal in every turn."""
        if self.relation == "exactly":
            return ratio.spread == (self.value, self.value)
        if self.relation == "at least":
            return ratio.value >= self.value
        return ratio.value <= self.value

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"


@dataclass(frozen=True)
class Side:
    """One side of a ratio."""

    name: str
    turns: tuple[float, ...]
    """What was measured, one number per turn."""

    @property
    def median(self) -> float:
        return statistics.median(self.turns)


@dataclass(frozen=True)
class Ratio:
    """What one side took, made or held, over what the other did.

    Raises:
        ConfigError: sides with no or not as many turns; numbers that have no ratio.
    """

    name: str
    above: Side
    below: Side
    unit: str
    """What is counted on both sides."""
    clock: Clock
    means: str
    """What the number says ..."""
    means_not: str
    """... and what it does not."""
    goal: Goal | None = None
    elsewhere: str = ""
    """What others report for the like, to compare and not to reach."""

    def __post_init__(self) -> None:
        above, below = self.above, self.below
        if not above.turns or len(above.turns) != len(below.turns):
            raise ConfigError(
                f"{self.name}: {above.name} has {len(above.turns)} turns and {below.name} "
                f"{len(below.turns)}; measure both in every turn"
            )
        for side in (above, below):
            for number in side.turns:
                if not math.isfinite(number) or number < 0 or (side is below and number == 0):
                    least = "more than 0" if side is below else "at least 0"
                    raise ConfigError(
                        f"{self.name}: {side.name} measured {number!r}; a ratio needs a finite "
                        f"number, {least}"
                    )
        if self.clock not in get_args(Clock):
            raise ConfigError(f"{self.name}: clock = {self.clock!r}; use {', '.join(CLOCKS)}, none")

    @property
    def by_turn(self) -> tuple[float, ...]:
        """The ratio within each turn, so that what slows a whole turn down does not count."""
        return tuple(a / b for a, b in zip(self.above.turns, self.below.turns, strict=True))

    @property
    def value(self) -> float:
        """The median over turns."""
        return statistics.median(self.by_turn)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the largest over turns."""
        return min(self.by_turn), max(self.by_turn)

    @property
    def reached(self) -> bool | None:
        """Whether the goal is; None where there is none."""
        return None if self.goal is None else self.goal.met(self)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with what follows from the turns beside them."""
        return {
            **asdict(self),
            "medians": [self.above.median, self.below.median],
            "value": self.value,
            "spread": list(self.spread),
            "reached": self.reached,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ratio:
        """What `as_dict` made, the turns being what counts."""
        goal = data["goal"]
        names = ("name", "unit", "clock", "means", "means_not", "elsewhere")
        return cls(
            above=Side(data["above"]["name"], tuple(data["above"]["turns"])),
            below=Side(data["below"]["name"], tuple(data["below"]["turns"])),
            goal=None if goal is None else Goal(goal["relation"], goal["value"]),
            **{name: data[name] for name in names},
        )


def in_turns(
    sides: Mapping[str, Callable[[], float]], turns: int, warm_up: Sequence[str] | None = None
) -> Turns:
    """Measure every side once a turn, each second turn in the opposite order.

    Args:
        sides: what gives a side's number.
        turns: how many.
        warm_up: sides that run once before and are not counted; None: all.

    Returns:
        Numbers by side, one per turn.
    """
    for name in sides if warm_up is None else warm_up:
        sides[name]()
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            found[name].append(sides[name]())
            print(f"turn {turn + 1} of {turns}, {name}: {found[name][-1]:.6g}", file=sys.stderr)
    return {name: tuple(values) for name, values in found.items()}


def seconds(work: Callable[[], object], clock: Clock = "cpu") -> float:
    """What `work` takes."""
    now = CLOCKS[clock]
    started = now()
    work()
    return now() - started


def rate(work: Callable[[], float], clock: Clock = "cpu") -> float:
    """How much of what `work` counts is done in a second."""
    now = CLOCKS[clock]
    started = now()
    done = work()
    return done / (now() - started)

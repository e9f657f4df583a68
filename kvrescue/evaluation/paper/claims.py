"""A claim of the paper beside what comes out when it is computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Cell", "Claim"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of a table that a claim rests on."""

    where: str
    numbers: Mapping[str, float]
    """As printed in the table."""
    value: float
    """What follows from them, in the claim's unit."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper beside what comes out."""

    name: str
    text: str
    """In this project's words."""
    source: str
    """Where it is stated, and what it is computed from."""
    stated: float
    recomputed: float | None
    """None when the tables do not say."""
    about: Literal["results", "costs"] = "results"
    unit: str = ""
    decimals: int = 0
    """Of the stated number."""
    relation: Literal["=", ">", ">=", "<"] = "="
    """How what comes out should stand to `stated`."""
    cells: tuple[Cell, ...] = ()
    note: str = ""

    @property
    def agrees(self) -> bool | None:
        """None when the tables do not say."""
        if self.recomputed is None:
            return None
        if self.relation == "=":
            # Halves round either way; binary floats do not hold decimal ones exactly.
            return abs(self.recomputed - self.stated) <= 0.5 * 10.0**-self.decimals + 1e-9
        if self.relation == "<":
            return self.recomputed < self.stated
        if self.relation == ">":
            return self.recomputed > self.stated
        return self.recomputed >= self.stated - 1e-9

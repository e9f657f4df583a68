"""The figures of the paper's tables 1, 2, 3 and 5, as data. (Table 4 is in `kvrescue.shapes`.)

All are means over problems. Budgets are None where nothing is evicted.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, Literal, TypeAlias, TypeVar

from kvrescue.errors import UnknownNameError, nearest

__all__ = [
    "BUDGETS",
    "DATASETS",
    "Ablation",
    "Accuracy",
    "DecodeCost",
    "PaperMethod",
    "WallClock",
    "ablation",
    "accuracies",
    "dataset_named",
    "decode_costs",
    "wall_clock",
]

DATASETS: Final = ("MATH500", "AIME24", "AMC23", "GSM8K", "OlympiadBench")
BUDGETS: Final = (64, 128, 256, 512)

PaperMethod: TypeAlias = Literal[
    "full_kv", "helper_full_kv", "best_of_n", "interleaving", "kv_rescue"
]
"""`best_of_n` is the evicted base's; `interleaving` is KV-Rescue without its detector."""


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """A row of Table 1: Qwen2.5-Math-7B, N = 8, per problem."""

    dataset: str
    method: PaperMethod
    budget: int | None
    steps: float
    output_tokens: int
    base_tokens: int
    helper_tokens: int | None


@dataclass(frozen=True, slots=True)
class Ablation:
    """A row of Table 2: MATH500, Qwen2.5-Math-7B, N = 8. Shares are percentages."""

    budget: int | None
    method: PaperMethod
    accuracy: float
    degeneration: float
    """Incorrect trajectories with at least 256 committed steps, of all."""
    base_tokens: int
    steps: int
    early_exit: float | None
    """Candidates of the base that the detector ended, of all."""


@dataclass(frozen=True, slots=True)
class WallClock:
    """A row of Table 3: MATH500, Qwen2.5-Math-72B, N = 8, budget 64, eight A100 with 40 GB."""

    method: PaperMethod
    batch: int
    problems_per_minute: float | None
    """None, like all that follows: it ran out of memory."""
    generation_s: float | None
    scoring_s: float | None
    base_tokens: int | None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A cell of Table 5: pass@1 in per cent with R-KV."""

    base: Literal["7B", "72B"]
    n: int
    method: PaperMethod
    budget: int | None
    dataset: str
    accuracy: float
    std: float | None
    """Over five seeds; None where there was one."""


@functools.cache
def decode_costs() -> tuple[DecodeCost, ...]:
    """Table 1."""
    return _table(DecodeCost, "table1.csv")


@functools.cache
def ablation() -> tuple[Ablation, ...]:
    """Table 2."""
    return _table(Ablation, "table2.csv")


@functools.cache
def wall_clock() -> tuple[WallClock, ...]:
    """Table 3."""
    return _table(WallClock, "table3.csv")


@functools.cache
def accuracies() -> tuple[Accuracy, ...]:
    """Table 5."""
    return _table(Accuracy, "table5.csv")


def dataset_named(name: str) -> str:
    """A data set of the paper, whatever the case of its name.

    Raises:
        UnknownNameError: there is none of that name.
    """
    for dataset in DATASETS:
        if dataset.casefold() == name.strip().casefold():
            return dataset
    raise UnknownNameError(f"unknown data set {name!r}{nearest(name, DATASETS)}")


Row = TypeVar("Row")

_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "int": int,
    "int | None": int,
    "float": float,
    "float | None": float,
}
"""By the annotation of a field; anything else is a text."""


def _table(kind: type[Row], file: str) -> tuple[Row, ...]:
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    readers = {
        field.name: _READERS.get(str(field.type), str)
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
    }
    return tuple(
        kind(**{name: readers[name](cell) if cell else None for name, cell in row.items()})
        for row in csv.DictReader(text.splitlines())
    )

"""Tables as values: written once, rendered as Markdown, CSV and JSON, which then agree."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

__all__ = ["Column", "Estimate", "Kind", "Table", "Value", "as_csv", "as_data", "as_markdown"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured number with what is known of its error."""

    value: float
    low: float | None = None
    """Of the 95 % interval."""
    high: float | None = None
    std: float | None = None
    """Sample standard deviation over seeds; None with one seed."""

    @classmethod
    def within(
        cls, value: float, interval: tuple[float, float] | None, std: float | None = None
    ) -> Estimate:
        """With an interval that may be unknown."""
        low, high = (None, None) if interval is None else interval
        return cls(value, low, high, std)


Value: TypeAlias = str | bool | int | float | Estimate | None
"""None: not measured, or not defined."""

Kind: TypeAlias = Literal["text", "code", "verdict", "count", "share", "mean", "ratio", "flops"]
"""How a column is shown. `share`: a fraction, shown in per cent; `code`: text of a model or of a
problem, shown as it is."""

_DIGITS: Final[Mapping[Kind, int]] = {"share": 1, "mean": 1, "ratio": 2}
_SIGNIFICANT: Final = 10
"""Digits of numbers in CSV and JSON."""
NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    """In CSV and JSON."""
    label: str
    """In Markdown and figures; it names the unit."""
    kind: Kind = "text"
    parts: tuple[Literal["std", "low", "high"], ...] = ()
    """What its estimates carry beside the value, each a column of the CSV file."""


INTERVAL: Final[tuple[Literal["std", "low", "high"], ...]] = ("low", "high")
SPREAD: Final[tuple[Literal["std", "low", "high"], ...]] = ("std", "low", "high")


@dataclass(frozen=True)
class Table:
    """Rows under columns, with what a reader has to know.

    Raises:
        ValueError: a row has another length than the columns.
    """

    name: str
    """Of files and keys."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    figures: tuple[str, ...] = field(default=())
    """Names of the figures that show it."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.name}: {len(row)} values in {len(self.columns)} columns")

    def column(self, name: str) -> tuple[Value, ...]:
        """The values of a column."""
        place = [column.name for column in self.columns].index(name)
        return tuple(row[place] for row in self.rows)

    def where(self, **wanted: Value) -> Iterator[Mapping[str, Value]]:
        """Rows that hold these values, by column name."""
        names = [column.name for column in self.columns]
        for row in self.rows:
            found = dict(zip(names, row, strict=True))
            if all(found[name] == value for name, value in wanted.items()):
                yield found


# -- Markdown ---------------------------------------------------------------------------------


def as_markdown(table: Table, level: int = 2) -> str:
    """Title, table and note; a value that is missing is shown as -."""
    lines = [f"{'#' * level} {table.title}", ""]
    if table.rows:
        right = [column.kind not in ("text", "code", "verdict") for column in table.columns]
        lines.append(_line(column.label for column in table.columns))
        lines.append(_line("---:" if is_number else "---" for is_number in right))
        for row in table.rows:
            shown = (
                shown_as(column, value) for column, value in zip(table.columns, row, strict=True)
            )
            lines.append(_line(shown))
    else:
        lines.append("No rows.")
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def shown_as(column: Column, value: Value) -> str:
    """A value as a reader sees it."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Estimate):
        text = _number(column.kind, value.value)
        if value.std is not None and "std" in column.parts:
            text += f" ± {_number(column.kind, value.std)}"
        if value.low is not None and value.high is not None:
            ends = (_number(column.kind, end) for end in (value.low, value.high))
            text += f" [{', '.join(ends)}]"
        return text
    if isinstance(value, int | float):
        return _number(column.kind, value)
    text = " ".join(value.split())
    if column.kind == "code":
        return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`" if text else NOTHING
    return text.replace("|", "\\|")


def _number(kind: Kind, value: float) -> str:
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "flops":
        return f"{value:.2e}"
    if kind == "share":
        value *= 100
    digits = 0 if kind == "mean" and abs(value) >= 1000 else _DIGITS.get(kind, 2)
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text  # no minus before a zero


# -- CSV and JSON -----------------------------------------------------------------------------


def as_csv(table: Table) -> str:
    """RFC 4180, one header line; shares are fractions, what is missing is empty."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    header: list[str] = []
    for column in table.columns:
        header += [column.name, *(f"{column.name}_{part}" for part in column.parts)]
    writer.writerow(header)
    for row in table.rows:
        fields: list[Any] = []
        for column, value in zip(table.columns, row, strict=True):
            plain = _plain(column, value)
            fields += plain.values() if isinstance(plain, dict) else [plain]
        writer.writerow(["" if item is None else _text(item) for item in fields])
    return file.getvalue()


def as_data(table: Table) -> dict[str, Any]:
    """As plain JSON data; shares are fractions, what is missing is null."""
    return {
        "title": table.title,
        "note": table.note,
        "columns": {column.name: column.label for column in table.columns},
        "rows": [
            {
                column.name: _plain(column, value)
                for column, value in zip(table.columns, row, strict=True)
            }
            for row in table.rows
        ],
    }


def _plain(column: Column, value: Value) -> Any:
    if not column.parts:
        return _rounded(value.value if isinstance(value, Estimate) else value)
    if value is None:
        return dict.fromkeys(("value", *column.parts))
    if not isinstance(value, Estimate):
        return {"value": _rounded(value), **dict.fromkeys(column.parts)}
    return {name: _rounded(getattr(value, name)) for name in ("value", *column.parts)}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_SIGNIFICANT}g}") if isinstance(value, float) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{_SIGNIFICANT}g}" if isinstance(value, float) else str(value)

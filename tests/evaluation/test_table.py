"""Tables as values: three renderings that agree."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.evaluation.tables.table import (
    SPREAD,
    Column,
    Estimate,
    Table,
    as_csv,
    as_data,
    as_markdown,
)

numbers = st.floats(-1e6, 1e6)
maybe = st.none() | numbers
estimates = st.builds(Estimate, numbers, maybe, maybe, maybe)
columns = (
    Column("name", "Name", "code"),
    Column("share", "Share (%)", "share", SPREAD),
    Column("count", "Count", "count"),
    Column("holds", "Holds", "verdict"),
)
rows = st.lists(
    st.tuples(
        st.text(max_size=12),
        st.none() | estimates,
        st.none() | st.integers(0, 10**6),
        st.none() | st.booleans(),
    ),
    max_size=6,
)


@given(rows)
def test_csv_and_json_hold_the_same(found: list[tuple[object, ...]]) -> None:
    table = Table("t", "T", columns, tuple(found))  # type: ignore[arg-type]
    read = list(csv.DictReader(io.StringIO(as_csv(table), newline="")))
    data = json.loads(json.dumps(as_data(table), allow_nan=False))["rows"]
    assert len(read) == len(data) == len(found)
    for line, entry in zip(read, data, strict=True):
        assert line["name"] == entry["name"]
        for part in ("value", *SPREAD):
            text = line["share" if part == "value" else f"share_{part}"]
            assert (float(text) if text else None) == entry["share"][part]
        assert (int(line["count"]) if line["count"] else None) == entry["count"]
        assert line["holds"] == {True: "yes", False: "no", None: ""}[entry["holds"]]


@given(rows)
def test_markdown_has_a_line_for_each_row_and_a_cell_for_each_column(
    found: list[tuple[object, ...]],
) -> None:
    text = as_markdown(Table("t", "T", columns, tuple(found)))  # type: ignore[arg-type]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == (2 + len(found) if found else 0)
    for line in lines:
        assert line.replace("\\|", "").count("|") == len(columns) + 1


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("share", Estimate(0.5, 0.25, 0.75, 0.125), "50.0 ± 12.5 [25.0, 75.0]"),
        ("share", Estimate(-0.00001), "0.0"),
        ("mean", Estimate(10587.4, 9000.0, 12000.0), "10,587 [9,000, 12,000]"),
        ("mean", 27.04, "27.0"),
        ("ratio", -0.125, "-0.12"),
        ("count", 4096, "4,096"),
        ("count", "full", "full"),
        ("flops", 1.5e12, "1.50e+12"),
        ("verdict", False, "no"),
        ("text", "a|b\nc", "a\\|b c"),
        ("code", "a`|", "`a'\\|`"),
        ("mean", None, "-"),
    ],
)
def test_values_as_a_reader_sees_them(kind: str, value: object, shown: str) -> None:
    column = Column("x", "X", kind, SPREAD)  # type: ignore[arg-type]
    text = as_markdown(Table("t", "T", (column,), ((value,),)))  # type: ignore[arg-type]
    assert text.splitlines()[4] == f"| {shown} |"


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="1 values in 4 columns"):
        Table("t", "T", columns, (("x",),))


def test_rows_are_found_by_value() -> None:
    table = Table("t", "T", columns, (("a", None, 1, True), ("b", None, 2, True)))
    assert table.column("count") == (1, 2)
    assert [row["name"] for row in table.where(holds=True, count=2)] == ["b"]

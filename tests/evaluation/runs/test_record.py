"""Records: what is written is what is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.errors import ConfigError
from kvrescue.evaluation.runs.record import Failure, Record, Use, parse_record, record_line
from kvrescue.types import Degradation

texts = st.text(max_size=20)
counts = st.integers(0, 10**9)
uses = st.builds(Use, counts, counts, bound=st.none() | counts)
records = st.builds(
    Record,
    setting=texts,
    problem=texts,
    digest=texts,
    gold=texts,
    answer=st.none() | texts,
    correct=st.booleans(),
    rules=st.dictionaries(texts, st.none() | st.booleans(), max_size=3),
    stop=texts,
    steps=counts,
    sources=st.lists(texts, max_size=4).map(tuple),
    uses=st.dictionaries(texts, uses, max_size=2),
    degradations=st.lists(st.builds(Degradation, texts, texts), max_size=2).map(tuple),
    text=texts,
    seconds=st.floats(0, 1e6),
    failure=st.none() | st.builds(Failure, texts, texts),
)


@given(records)
def test_a_line_reads_back_and_is_one_line(record: Record) -> None:
    line = record_line(record)
    assert "\n" not in line
    assert parse_record(line) == record


def test_lone_surrogates_survive() -> None:
    """A byte-level tokenizer may leave half a character; JSON must still be valid UTF-8."""
    record = Record("s", "p", "d", "1", text="\ud800 x \x00")
    line = record_line(record)
    line.encode()
    assert parse_record(line) == record


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "not a record"),
        ("[1]", "not a record"),
        ('{"schema":2}', "schema 1"),
        ('{"schema":1,"setting":"s"}', "problem"),
        (
            json.dumps({"schema": 1, **dict.fromkeys(("setting", "problem", "digest", "gold"), 3)}),
            "setting",
        ),
    ],
)
def test_what_is_no_record_is_refused(line: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_record(line)

"""Problem sets: read as they are, refused with the place where they are wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.errors import ConfigError, DependencyError, InputError, UnknownNameError
from kvrescue.evaluation.bill import bills
from kvrescue.evaluation.grading import GradingRule
from kvrescue.evaluation.problems import Problem, ProblemSet
from kvrescue.evaluation.sources import PRESETS, load_problems
from kvrescue.scorers.specs import SYSTEM


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_tiny() -> None:
    found = load_problems("tiny:7", limit=5)
    assert [p.question for p in found] == [bill.question for bill in bills("test", 0, 5)]
    assert (found.rule, found.system, len(load_problems("tiny"))) == (GradingRule.EXACT, None, 200)
    assert not found.starts_like(load_problems("tiny:5", seed=1))


def test_a_local_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        {"id": "a", "question": "1 + 1?", "answer": " 2 "},
        {"question": "Is 2 prime?", "answer": "Yes"},
        {"id": 7, "problem": "Half of 3?", "answer": 1.5, "source": "ignored"},
    )
    found = load_problems(path)
    assert found.name == "mine"
    assert found.problems == (
        Problem("a", "1 + 1?", "2"),
        Problem("2", "Is 2 prime? (Yes or No)", "Yes"),
        Problem("7", "Half of 3?", "1.5"),
    )
    assert (found.rule, found.system, found.seeds) == (GradingRule.MATH, SYSTEM, 1)


@pytest.mark.parametrize("name", PRESETS)
def test_a_named_set_from_a_local_file(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "x.jsonl", {"id": "a", "question": "1 + 1?", "answer": "2"})
    found = load_problems(name, path)
    assert (found.name, found.seeds) == (name, 5 if name in ("aime24", "amc23") else 1)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "there is none"),
        ([[1]], "line 1: expected an object"),
        ([{"question": "x"}], "line 1: 'answer' is None"),
        ([{"answer": "x"}], "line 1: 'question' is None"),
        ([{"question": " ", "answer": "1"}], "line 1: the question is empty"),
        ([{"question": "x", "answer": " "}], "line 1: the answer is empty"),
        ([{"question": "x", "answer": True}], "line 1: 'answer' is True"),
        ([{"question": "x", "answer": ["1"]}], "line 1: 'answer'"),
        ([{"question": "x", "answer": float("nan")}], "line 1: 'answer' is nan"),
        ([{"question": "x", "answer": float("inf")}], "line 1: 'answer' is inf"),
        ([{"id": "", "question": "x", "answer": "1"}], "line 1: 'id' is ''"),
        ([{"id": "a", "question": q, "answer": "1"} for q in "xy"], "'a' is there twice"),
        ([{"id": i, "question": "x", "answer": "1"} for i in "ab"], "'b' asks the same as 'a'"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, rows: list[object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        load_problems(write(tmp_path / "x.jsonl", *rows))


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"{\n", "line 1: not JSON"), (b"\xff", "not UTF-8"), (b"[" * 100_000, "line 1: not JSON")],
)
def test_bytes_that_are_refused(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=text):
        load_problems(str(path))


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("gsm9k", UnknownNameError, "did you mean 'gsm8k'"),
        ("tiny:x", InputError, "tiny:COUNT"),
        ("tiny:0", InputError, "1 to 10000"),
        ("nothing.jsonl", InputError, "No such file"),
    ],
)
def test_names_that_are_refused(name: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        load_problems(name)


def test_limits_that_are_refused() -> None:
    with pytest.raises(ConfigError, match="limit = 0"):
        load_problems("tiny", limit=0)
    with pytest.raises(InputError, match="drawn, not read"):
        load_problems("tiny", "x.jsonl")


HUB_ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "q?", "answer": "So 1,000 it is.\n#### 1,000"},
    "math500": {"problem": "q?", "answer": "1000", "unique_id": "test/x.json"},
    "aime24": {"problem": "q?", "answer": 1000, "id": 60},
    "amc23": {"question": "q?", "answer": "1000", "id": "0"},
    "olympiadbench": {"question": "q?", "final_answer": ["$1000$"], "id": 1606},
}


def fake_hub(monkeypatch: pytest.MonkeyPatch, rows: Any) -> list[tuple[Any, ...]]:
    asked = []

    def load_dataset(name: str, config: str | None, split: str) -> Any:
        asked.append((name, config, split))
        if isinstance(rows, Exception):
            raise rows
        return rows

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


@pytest.mark.parametrize("name", PRESETS)
def test_a_named_set_from_the_hub(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked = fake_hub(monkeypatch, [HUB_ROWS[name]])
    (problem,) = load_problems(name)
    assert (problem.question, problem.answer) == ("q?", "1000")
    assert problem.id.startswith(f"{name}-")
    assert asked == [(PRESETS[name].hub, PRESETS[name].config, PRESETS[name].split)]


def test_any_set_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch, [{"problem": "q?", "answer": "1"}])
    assert load_problems("me/mine:validation").problems[0].question == "q?"
    assert asked == [("me/mine", None, "validation")]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (ConnectionError("no route"), "cannot be loaded: ConnectionError: no route"),
        ([{"question": "q?"}], r"row 0: no answer \('answer'\); it has \['question'\]"),
        ([{"answer": "1"}], "row 0: no field 'question'"),
    ],
)
def test_hubs_that_fail(monkeypatch: pytest.MonkeyPatch, rows: Any, text: str) -> None:
    fake_hub(monkeypatch, rows)
    with pytest.raises(InputError, match=text):
        load_problems("me/mine")


def test_the_hub_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DependencyError, match="datasets"):
        load_problems("gsm8k")


@given(
    st.lists(
        st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=4, unique_by=lambda p: p[0]
    )
)
def test_a_set_reads_back(pairs: list[tuple[str, str]]) -> None:
    problems = tuple(Problem(str(i), q, a) for i, (q, a) in enumerate(pairs))
    whole = ProblemSet("s", problems, GradingRule.MATH, 5, SYSTEM)
    assert ProblemSet.from_data(json.loads(json.dumps(whole.data()))) == whole
    assert len({p.digest for p in problems}) == len(set(pairs))
    for size in range(len(problems)):
        part = ProblemSet("s", problems[:size], GradingRule.MATH)
        assert part.starts_like(whole)
        assert whole.starts_like(part)

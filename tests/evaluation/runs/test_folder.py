"""The folder of a run: nothing is lost, nothing is there twice, one writer at a time."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.errors import RunError
from kvrescue.evaluation.problems import Problem
from kvrescue.evaluation.runs.folder import Run, RunWriter
from kvrescue.evaluation.runs.record import Failure
from kvrescue.events import TrajectoryStarted
from kvrescue.types import Question
from tests.evaluation.runs.parts import problem_set, record, setting

PROBLEMS = problem_set(5)
SETTING = setting()


def writer(
    path: Path, problems: Any = PROBLEMS, settings: Any = (SETTING,), composition: str = "made"
) -> RunWriter:
    return RunWriter(path, problems, settings, composition, {"started": "now"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    event = TrajectoryStarted(Question("x"), 0, ("base",))
    with writer(tmp_path / "run") as run:
        for problem in PROBLEMS:
            run.write(record(SETTING, problem, correct=problem.id == "2"), [event])
    found = Run.read(tmp_path / "run")
    assert found.problems == PROBLEMS
    assert list(found.settings) == [SETTING.key]
    assert found.settings[SETTING.key] == SETTING
    assert [r.problem for r in found.of(SETTING.key)] == [p.id for p in PROBLEMS]
    assert [r.correct for r in found.of(SETTING.key)] == [False, False, True, False, False]
    assert found.events(SETTING.key, "3") == [event]
    assert found.events(SETTING.key, "7") is None
    assert found.sessions == ({"started": "now"},)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_crash_at_any_byte_loses_at_most_the_record_that_was_being_written(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run")
    with writer(path) as run:
        for problem in PROBLEMS[:3]:
            run.write(record(SETTING, problem))
    lines = path / "records.jsonl"
    whole = lines.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    lines.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    with writer(path) as run:
        assert len(run.done) == kept
        for problem in PROBLEMS[kept:]:
            run.write(record(SETTING, problem))
    assert [r.problem for r in Run.read(path).of(SETTING.key)] == [p.id for p in PROBLEMS]
    assert lines.read_bytes().startswith(b"".join(whole.splitlines(keepends=True)[:kept]))


def test_a_record_is_there_once(tmp_path: Path) -> None:
    with writer(tmp_path) as run:
        run.write(record(SETTING, PROBLEMS[0]))
        with pytest.raises(RunError, match="recorded already"):
            run.write(record(SETTING, PROBLEMS[0]))
    with writer(tmp_path) as run, pytest.raises(RunError, match="recorded already"):
        run.write(record(SETTING, PROBLEMS[0]))


def test_failures_are_tried_again(tmp_path: Path) -> None:
    failed = record(SETTING, PROBLEMS[0], failure=Failure("PolicyError", "no memory"))
    with writer(tmp_path) as run:
        run.write(failed)
        assert not run.done
    assert Run.read(tmp_path).of(SETTING.key) == []
    assert Run.read(tmp_path).records[SETTING.key, "0"] == failed
    with writer(tmp_path) as run:
        run.write(record(SETTING, PROBLEMS[0], correct=True))
    assert [r.correct for r in Run.read(tmp_path).of(SETTING.key)] == [True]


def _try_to_write(path: str, queue: Any) -> None:
    try:
        writer(Path(path)).close()
    except RunError as error:
        queue.put(str(error))
    else:
        queue.put("it may write")


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()

    def second() -> str:
        process = context.Process(target=_try_to_write, args=(str(tmp_path), queue))
        process.start()
        told: str = queue.get(timeout=120)
        process.join()
        return told

    with writer(tmp_path):
        assert "another process writes" in second()
    assert second() == "it may write"


def test_a_folder_belongs_to_its_problems(tmp_path: Path) -> None:
    writer(tmp_path).close()
    other = problem_set(5).problems[::-1]
    changed = type(PROBLEMS)("sums", other, PROBLEMS.rule)
    with pytest.raises(RunError, match="choose another folder"):
        writer(tmp_path, changed)
    writer(tmp_path, problem_set(2)).close()  # the first of them: fine
    writer(tmp_path, problem_set(9)).close()  # more of them: fine
    assert len(Run.read(tmp_path).problems) == 9


def test_settings_are_added(tmp_path: Path) -> None:
    other = setting(n=2)
    writer(tmp_path).close()
    writer(tmp_path, settings=[other]).close()
    assert list(Run.read(tmp_path).settings) == [SETTING.key, other.key]


def test_the_composition_that_was_asked_for_last_stands_last(tmp_path: Path) -> None:
    other = setting(n=2)
    writer(tmp_path, settings=[SETTING], composition="a").close()
    writer(tmp_path, settings=[SETTING, other], composition="b").close()
    assert Run.read(tmp_path).compositions == {
        "a": (SETTING.key,),
        "b": (SETTING.key, other.key),
    }
    writer(tmp_path, settings=[other], composition="a").close()
    found = Run.read(tmp_path)
    assert list(found.compositions.items()) == [
        ("b", (SETTING.key, other.key)),
        ("a", (SETTING.key, other.key)),
    ]
    assert list(found.settings) == [SETTING.key, other.key]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("plan.json", "{", "damaged"),
        ("plan.json", "[]", "no plan of schema"),
        ("plan.json", '{"schema": 99}', "no plan of schema"),
        ("plan.json", '{"schema": 1, "problems": {}}', "lacks settings, compositions"),
        ("records.jsonl", "{}\n", "line 1: not a record"),
    ],
)
def test_damage_is_told(tmp_path: Path, name: str, content: str, text: str) -> None:
    writer(tmp_path).close()
    (tmp_path / name).write_text(content)
    with pytest.raises(RunError, match=text):
        Run.read(tmp_path)
    with pytest.raises(RunError, match=text):
        writer(tmp_path)


def test_a_damaged_trace_is_told(tmp_path: Path) -> None:
    event = TrajectoryStarted(Question("x"), 0, ("base",))
    with writer(tmp_path) as run:
        run.write(record(SETTING, PROBLEMS[0]), [event])
    (trace,) = (tmp_path / "traces").rglob("*.gz")
    trace.write_bytes(trace.read_bytes()[:-9])
    with pytest.raises(RunError, match="damaged"):
        Run.read(tmp_path).events(SETTING.key, "0")


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        Run.read(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be used"):
        writer(tmp_path / "file")


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(RunError, match="holds other things and no run"):
        writer(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_start_that_was_killed_at_once_is_no_obstacle(tmp_path: Path) -> None:
    for name in (".lock", "plan.jsonx1y2"):
        (tmp_path / name).write_text("{")
    writer(tmp_path).close()
    assert list(Run.read(tmp_path).settings) == [SETTING.key]


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 300, "π ?*", "CON"])
def test_ids_are_no_paths(tmp_path: Path, name: str) -> None:
    problem = Problem(name, "q", "1")
    problems = type(PROBLEMS)("one", (problem,), PROBLEMS.rule)
    with writer(tmp_path, problems) as run:
        run.write(record(SETTING, problem), [TrajectoryStarted(Question("x"), 0, ("base",))])
    assert Run.read(tmp_path).events(SETTING.key, name) is not None
    (trace,) = tmp_path.rglob("*.gz")
    assert trace.resolve().is_relative_to(tmp_path / "traces" / SETTING.key)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.fail("this test needs /dev/full")
    with writer(tmp_path) as run, open("/dev/full", "ab", buffering=0) as full:
        run._records = full
        with pytest.raises(RunError, match="No space left"):
            run.write(record(SETTING, PROBLEMS[0]))
        assert not run.done
    assert Run.read(tmp_path).of(SETTING.key) == []

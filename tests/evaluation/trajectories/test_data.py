"""The report's data: what runs and traces hold, and how they are joined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.errors import ConfigError
from kvrescue.evaluation.grading.grade import GradingRule
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.record import Failure
from kvrescue.evaluation.trajectories.data import collect
from kvrescue.evaluation.trajectories.settings import of_run, with_labels
from kvrescue.events import Event, TraceWriter, TrajectoryFinished
from kvrescue.types import Degradation, Question
from tests.evaluation.trajectories.made import (
    Drawn,
    entropy,
    problems_of,
    settings_of,
    told,
    write_run,
)
from tests.evaluation.trajectories.runs import record_tiny_run

PROBLEMS = problems_of({"one": ("1 + 1?", "2"), "two": ("2 + 2?", "4")})
ONE, TWO = (Question(problem.question, problem.id) for problem in PROBLEMS)
STEP = [
    Drawn("base", "wo", verdict=entropy(3.14159265, 2)),
    Drawn("base", "wrong\n\n", 0.25),
    Drawn("helper", "right\n\n", 0.75),
]
ALONE = [Drawn("base", "worse\n\n", 0.2), Drawn("base", "wrong\n\n", 0.25)]
SETTINGS = settings_of()
EVICTED, RESCUE = SETTINGS["best_of_n"], SETTINGS["kv_rescue"]


def solved(question: Question, answer: str, **more: Any) -> list[Event]:
    return told(question, [STEP, STEP], answer=answer, **more)


def evicted(question: Question, answer: str | None = None) -> list[Event]:
    return told(question, [ALONE], proposers=("base",), answer=answer)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    degraded = (Degradation("helper", "out of memory"),)
    events = {
        ("best_of_n", "one"): evicted(ONE, "3"),
        ("kv_rescue", "one"): solved(ONE, "2"),
        ("best_of_n", "two"): Failure("PolicyError", "no more"),
        ("kv_rescue", "two"): solved(TWO, "5", degradations=degraded),
    }
    return Run.read(write_run(tmp_path / "made", PROBLEMS, SETTINGS, events))  # type: ignore[arg-type]


def cells(report: Any) -> dict[str, list[Any]]:
    return {problem["id"]: problem["cells"] for problem in report.index["problems"]}


def test_outcomes(run: Run) -> None:
    report = collect([run])
    assert [[cell[0] for cell in row] for row in cells(report).values()] == [
        ["wrong", "correct"],
        ["failed", "wrong"],
    ]
    assert [[cell[2:5] for cell in row] for row in cells(report).values()] == [
        [[0, 0, 1], [2, 0, 1]],
        [[0, 0, 0], [2, 1, 1]],
    ]
    failed = report.chunks[1]["trajectories"][0]
    assert failed["failure"] == {"type": "PolicyError", "message": "no more"}
    assert "rounds" not in failed
    assert (report.trajectories, report.traced) == (4, 3)


def test_a_step_has_all_that_a_reader_asks_for(run: Run) -> None:
    found = collect([run]).chunks[0]["trajectories"][1]
    first, second = found["rounds"]
    aborted, rival, winner = first["candidates"]
    assert aborted["verdict"] == {
        "detector": "entropy",
        "reason": "incoherent: mean entropy 3.142 exceeds 2.5",
        "value": 3.14159,
        "threshold": 2.5,
        "position": 2,
    }
    assert (aborted["score"], rival["score"], winner["score"]) == (None, 0.25, 0.75)
    assert [first["candidates"][first["chosen"]]["source"], first["step"]] == ["helper", 0]
    assert first["spent"] == {"base": 2 + len("wrong\n\n"), "helper": len("right\n\n")}
    limit = RESCUE.config.sampling.max_step_tokens
    assert first["saved"] == second["saved"] == limit - 2
    assert found["saved"] == 2 * (limit - 2)
    logical, physical, *_, bound = second["caches"]["base"]
    assert physical == bound < logical
    assert second["caches"]["helper"][5] is None


def test_the_baseline_of_a_repair_evicts_alike(run: Run) -> None:
    assert [setting["baseline"] for setting in collect([run]).index["settings"]] == [None, 0]


def test_a_setting_at_another_budget_is_no_baseline(tmp_path: Path) -> None:
    both = {
        "best_of_n": settings_of(budget=16)["best_of_n"],
        "kv_rescue": settings_of(budget=32)["kv_rescue"],
    }
    path = write_run(tmp_path / "run", PROBLEMS, both, {("kv_rescue", "one"): solved(ONE, "2")})  # type: ignore[arg-type]
    index = collect([Run.read(path)]).index
    assert [setting["baseline"] for setting in index["settings"]] == [None, None]
    assert index["problems"][1]["cells"] == [None, None]


def test_a_record_without_a_trace_keeps_its_text(tmp_path: Path) -> None:
    path = tmp_path / "run"
    events = {("kv_rescue", "one"): solved(ONE, "2")}
    report = collect([Run.read(write_run(path, PROBLEMS, SETTINGS, events, traced=False))])  # type: ignore[arg-type]
    found = report.chunks[0]["trajectories"][1]
    assert found["text"] == "right\n\n" * 2
    assert found["sources"] == ["helper", "helper"]
    assert "rounds" not in found
    assert report.chunks[0]["diffs"] == []


class TestJoined:
    def other(self, path: Path, gold: str = "2") -> Run:
        problems = problems_of({"another name": ("1 + 1?", gold), "three": ("3?", "3")})
        question = Question("1 + 1?", "another name")
        events = {("kv_rescue", "another name"): solved(question, "2")}
        return Run.read(write_run(path, problems, settings_of(seed=1), events))  # type: ignore[arg-type]

    def test_a_problem_of_two_runs_is_one(self, run: Run, tmp_path: Path) -> None:
        report = collect([run, self.other(tmp_path / "other")])
        assert list(cells(report)) == ["one", "two", "three"]
        assert [cell and cell[0] for cell in cells(report)["one"]] == [
            *("wrong", "correct"),
            *(None, "correct"),
        ]
        pairs = [diff[:2] for diff in report.chunks[0]["diffs"]]
        assert pairs == [[0, 1], [0, 3], [1, 3]]

    def test_another_right_answer_is_another_problem(self, run: Run, tmp_path: Path) -> None:
        report = collect([run, self.other(tmp_path / "other", gold="two")])
        assert list(cells(report)) == ["one", "two", "another name", "three"]

    def test_a_run_beside_itself(self, run: Run) -> None:
        index = collect([run, run]).index
        for part, name in (("sources", "name"), ("settings", "id"), ("settings", "label")):
            names = [entry[name] for entry in index[part]]
            assert len(set(names)) == len(names)
        assert [setting["baseline"] for setting in index["settings"]] == [None, 0, None, 2]


class TestTraces:
    def trace(self, path: Path, *runs: list[Event]) -> Path:
        with TraceWriter(path) as writer:
            for event in (event for events in runs for event in events):
                writer(event)
        return path

    def test_alone(self, tmp_path: Path) -> None:
        asked = Question("what?")
        path = self.trace(
            tmp_path / "solve.jsonl",
            solved(asked, "7"),
            solved(asked, "8", seed=1),
            solved(asked, "9"),
        )
        report = collect(traces=[path])
        assert [setting["label"] for setting in report.index["settings"]] == [
            "solve.jsonl · trace · seed 0",
            "solve.jsonl · trace · seed 1",
            "solve.jsonl · trace · seed 0 · again (2)",
        ]
        (row,) = cells(report).values()
        assert [cell[:3] for cell in row] == [["ungraded", a, 2] for a in ("7", "8", "9")]
        assert report.index["problems"][0]["gold"] is None
        assert report.chunks[0]["trajectories"][0]["saved"] is None  # the limit is not told
        assert [diff[3] for diff in report.chunks[0]["diffs"]] == ["none"] * 3

    @pytest.mark.parametrize(
        ("rule", "gold", "outcomes"),
        [
            (GradingRule.EXACT, "2", ["correct", "correct", "wrong", "unfinished"]),
            (GradingRule.MATH, "2", ["correct", "ungraded", "ungraded", "unfinished"]),
            (GradingRule.EXACT, "x", ["ungraded", "ungraded", "ungraded", "unfinished"]),
        ],
    )
    def test_beside_a_run_whose_answers_judge_it(
        self, tmp_path: Path, rule: GradingRule, gold: str, outcomes: list[str]
    ) -> None:
        problems = problems_of({"one": ("1 + 1?", gold)}, rule)
        run = Run.read(write_run(tmp_path / "run", problems, SETTINGS, {}))
        asked = Question("1 + 1?")
        runs = [
            told(asked, [[Drawn("base", rf"\boxed{{{answer}}}", 1.0)]], answer=answer, seed=seed)
            for seed, answer in enumerate(["2", "+2", "3", "2"])
        ]
        path = self.trace(tmp_path / "t.jsonl", *runs[:3], runs[3][:-1])
        report = collect([run], [path])
        assert list(cells(report)) == ["one"]
        assert [cell[0] for cell in cells(report)["one"][2:]] == outcomes

    def test_numbers_that_json_lacks(self, tmp_path: Path) -> None:
        pool = [Drawn("base", "x", verdict=entropy(float("nan"), 1, float("inf"))), *STEP]
        path = self.trace(tmp_path / "t.jsonl", told(Question("q"), [pool]))
        report = collect(traces=[path])
        verdict = report.chunks[0]["trajectories"][0]["rounds"][0]["candidates"][0]["verdict"]
        assert (verdict["value"], verdict["threshold"]) == ("nan", "inf")
        json.dumps(report.chunks, allow_nan=False)

    def test_nothing_at_all(self) -> None:
        with pytest.raises(ConfigError, match="name the folder of a run, or a trace"):
            collect()


@given(st.lists(st.tuples(st.sampled_from([16, 32]), st.integers(0, 2)), max_size=6))
def test_labels_tell_settings_apart(cells: list[tuple[int, int]]) -> None:
    settings = [
        setting
        for budget, seed in dict.fromkeys(cells)
        for setting in settings_of(seed=seed, budget=budget).values()
    ]
    columns = with_labels([of_run(0, setting) for setting in settings], ["run"])
    assert len({column.label for column in columns}) == len(settings)
    assert len({column.short for column in columns}) == len(settings)
    assert all(len(column.short) <= len(column.label) for column in columns)


def test_a_run_that_was_really_made(tmp_path: Path) -> None:
    path = record_tiny_run(tmp_path / "tiny", count=1, n=2, max_output_tokens=60)
    run = Run.read(path)
    report = collect([run])
    assert report.traced == report.trajectories == 2
    compared = 0
    for problem, chunk in zip(run.problems, report.chunks, strict=True):
        for place, key in enumerate(run.settings):
            finished = (run.events(key, problem.id) or [])[-1]
            assert isinstance(finished, TrajectoryFinished)
            found, solution = chunk["trajectories"][place], finished.solution
            chosen = [
                round_["candidates"][round_["chosen"]]
                for round_ in found["rounds"]
                if round_["chosen"] is not None
            ]
            assert [step["text"] for step in chosen] == [step.text for step in solution.steps]
            for name, use in solution.tokens.items():
                spent = sum(round_["spent"].get(name, 0) for round_ in found["rounds"])
                assert spent == use.generated == found["uses"][name]["generated"]
            last = found["rounds"][-1]["caches"]["base"]
            assert last[1] <= last[5] < last[0]
            compared += len(chosen)
    assert compared > 4

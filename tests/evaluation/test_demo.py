"""The demo on the shipped base and helper, with an exact checker for a scorer."""

from __future__ import annotations

import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvrescue.config import load_config
from kvrescue.errors import ConfigError, KVRescueError, PolicyError
from kvrescue.evaluation.demo import DemoPlan, DemoReport, Row, Setting, run_demo
from kvrescue.evaluation.demo_data import as_data, first_wrong_step
from kvrescue.evaluation.methods import compose, evictor_of
from kvrescue.types import SEPARATOR
from tests.cli.parts import CONFIG

ORACLE = str(Path(__file__).parents[1] / "cli" / "oracle.py")
OVERRIDES = (f"plugins=[{ORACLE}]", "scorer={kind: bill_oracle}")


def view(report: DemoReport) -> str:
    from rich.console import Console

    from kvrescue.cli.demo_view import show_report

    console = Console(record=True, width=120, file=StringIO())
    show_report(console, report)
    return console.export_text()


class TestMethods:
    def test_compositions(self) -> None:
        config = load_config("tiny")
        base, helper = config.proposers["base"], config.proposers["helper"]
        full = compose(config, "full_kv", 2).proposers
        assert list(full) == ["base"]
        assert getattr(full["base"].policy, "evictor", 0) is None
        assert (full["base"].candidates, full["base"].detectors) == (2, ())
        assert compose(config, "helper", 3).proposers == {
            "helper": helper.model_copy(update={"candidates": 3})
        }
        evicted = compose(config, "best_of_n", 4).proposers
        assert list(evicted) == ["base"]
        assert evicted["base"].policy == base.policy
        assert (evicted["base"].candidates, evicted["base"].detectors) == (4, ())
        rescue = compose(config, "kv_rescue", 8)
        assert [part.candidates for part in rescue.proposers.values()] == [8, 8]
        assert rescue.proposers["base"].detectors == base.detectors
        assert rescue.scorer == config.scorer

    def test_refusals(self) -> None:
        config = load_config("tiny")
        with pytest.raises(ConfigError, match="n = 0: expected a whole number"):
            compose(config, "kv_rescue", 0)
        alone = config.model_copy(update={"proposers": {"base": config.proposers["base"]}})
        with pytest.raises(ConfigError, match="'helper'"):
            compose(alone, "kv_rescue", 1)
        with pytest.raises(ConfigError, match="no evictor"):
            evictor_of(compose(config, "full_kv", 1))


@pytest.fixture(scope="module")
def report() -> DemoReport:
    short = (*OVERRIDES, "limits.max_output_tokens=128")  # longer than a right solution
    return run_demo(DemoPlan(problems=4, budgets=(64, 16), n=2, overrides=short))


class TestReport:
    def test_settings(self, report: DemoReport) -> None:
        assert [(s.budget, s.n) for s in report.settings] == [(16, 1), (16, 2)]
        assert [(s.budget, s.n) for s in report.sweep] == [(16, 1), (64, 1)]
        assert [row.n for row in report.helper_only] == [2, 4]
        assert report.headline.n == 2
        assert report.settings[0] == report.sweep[0]

    def test_an_exact_scorer_rescues(self, report: DemoReport) -> None:
        rows = report.headline
        assert rows["kv_rescue"].accuracy > rows["best_of_n"].accuracy
        assert rows["kv_rescue"].accuracy >= report.helper_only[-1].accuracy
        assert rows["best_of_n"].helper_share is None
        assert rows["helper"].helper_share == 1.0
        share = rows["kv_rescue"].helper_share
        assert share is not None
        assert 0 < share < 1

    def test_tokens_count_every_candidate(self, report: DemoReport) -> None:
        one, two = report.settings
        assert two["best_of_n"].base_tokens > 1.5 * one["best_of_n"].base_tokens
        assert two["full_kv"] == one["full_kv"]
        assert one["full_kv"].helper_tokens == one["helper"].base_tokens == 0

    def test_json(self, report: DemoReport) -> None:
        data = as_data(report)
        head = ["problems", "budget", "window", "n", "recovery", "recovery_ci", "rows", "example"]
        assert list(data)[: len(head)] == head
        assert (data["problems"], data["budget"], data["window"], data["n"]) == (4, 16, 12, 2)
        methods = [row["method"] for row in data["rows"]]
        assert methods == ["full_kv", "helper", "best_of_n", "kv_rescue"]
        for row in data["rows"]:
            low, high = row["accuracy_ci"]
            assert 0 <= low <= row["accuracy"] <= high <= 1
        assert data["settings"][-1]["rows"] == data["rows"]

    def test_example_is_the_first_of_its_kind(self, report: DemoReport) -> None:
        setting = report.settings[0]
        columns = zip(
            setting["best_of_n"].correct,
            setting["helper"].correct,
            setting["kv_rescue"].correct,
            strict=True,
        )
        wanted = [i for i, column in enumerate(columns) if column == (False, False, True)]
        example = report.example
        assert (example.index if example else None) == (wanted[0] if wanted else None)
        assert example is not None, "no such problem among these: choose another seed"
        assert first_wrong_step(example.bill, example.solutions["kv_rescue"]) is None
        for method in ("best_of_n", "helper"):
            wrong = first_wrong_step(example.bill, example.solutions[method])  # type: ignore[index]
            assert wrong is not None
        steps = [step.text.removesuffix(SEPARATOR) for step in example.solutions["kv_rescue"].steps]
        assert tuple(steps) == example.bill.steps

    def test_processes_give_the_same_numbers(self) -> None:
        short = (*OVERRIDES, "limits.max_output_tokens=48")
        plan = DemoPlan(problems=2, budgets=(16,), n=1, overrides=short)
        told: list[tuple[int, int]] = []
        again = run_demo(plan, 2, lambda done, whole: told.append((done, whole)))
        assert _numbers(again) == _numbers(run_demo(plan))
        assert told[0][0] == 0
        assert told[-1][0] == told[-1][1]
        assert told == sorted(told)

    def test_view(self, report: DemoReport) -> None:
        text = view(report)
        for shown in ("KV-Rescue, 2 + 2", "Recovery", "Over budgets, N = 1", "helper, best of 4"):
            assert shown in text


def setting(full: int, evicted: int, rescued: int, problems: int) -> Setting:
    correct = {"full_kv": full, "helper": 0, "best_of_n": evicted, "kv_rescue": rescued}
    rows = tuple(
        Row(method, 1, (True,) * right + (False,) * (problems - right), 1.0, 1.0, 0, None)  # type: ignore[arg-type]
        for method, right in correct.items()
    )
    return Setting(16, 12, 1, rows)


class TestLittleToRecover:
    @pytest.mark.parametrize(
        ("full", "evicted", "problems", "shown"),
        [
            (97, 93, 100, False),
            (97, 88, 100, False),
            (97, 87, 100, True),  # exactly 10 points, however 0.97 - 0.87 is rounded
            (97, 0, 100, True),
            (60, 60, 100, False),
            (50, 60, 100, False),
            (3, 2, 10, True),
            (3, 2, 11, False),
        ],
    )
    def test_less_than_ten_points(
        self, full: int, evicted: int, problems: int, shown: bool
    ) -> None:
        found = setting(full, evicted, problems, problems)
        expected = (problems - evicted) / (full - evicted) if shown else None
        assert found.recovery == (pytest.approx(expected) if shown else None)
        if not shown:
            assert found.recovery_interval is None

    def test_in_table_and_json(self, report: DemoReport) -> None:
        near = setting(97, 93, 99, 100)
        changed = replace(report, sweep=(report.settings[0], near))
        assert as_data(changed)["sweep"][1]["recovery"] is None
        assert as_data(changed)["sweep"][1]["recovery_ci"] is None
        assert as_data(changed)["recovery"] == as_data(report)["recovery"] is not None
        last = [line for line in view(changed).splitlines() if line.startswith("│     16")][-1]
        assert last.split("│")[5].strip() == "-"
        text = " ".join(view(changed).split())
        assert "- where full KV and evicted are less than 10 points apart" in text
        headline = replace(report, settings=(near, near), helper_only=report.helper_only[:1] * 2)
        headline = replace(headline, helper_only=tuple(replace(r, n=2) for r in report.helper_only))
        assert "Recovery: - (full KV and evicted are less than 10" in view(headline)


def test_a_task_that_fails_ends_those_beside_it() -> None:
    """Nobody waits for the work of the other processes, whose result nobody will see."""
    data = load_config(yaml.safe_load(CONFIG)).model_dump(mode="json")

    def plan(**options: dict[str, Any]) -> DemoPlan:
        for name, changes in options.items():
            data["proposers"][name]["policy"] |= changes
        changed = load_config(data)
        found = DemoPlan(problems=1, budgets=(16,), n=1)
        found.configs[16] = changed
        return found

    endless = {"delay": 5.0, "eos": 0.0, "words": ["step\n\n"]}
    broken = plan(helper=endless, base={"broken": True})
    started = time.monotonic()
    with pytest.raises(PolicyError, match="on fire"):
        run_demo(broken, workers=2)
    # Alone, the endless one takes more than an hour: no machine is so slow that this is by chance.
    assert time.monotonic() - started < 1800


def test_a_worker_that_fails_says_why() -> None:
    plan = DemoPlan(problems=2, budgets=(16,), n=1, overrides=(*OVERRIDES, "limits.max_context=20"))
    with pytest.raises(KVRescueError, match="nothing can be added"):
        run_demo(plan, 2)


def _numbers(report: DemoReport) -> Any:
    data = as_data(report)
    return {key: data[key] for key in data if key != "seconds"}

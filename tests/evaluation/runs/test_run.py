"""Whole runs on the tiny trio: resumed after anything, and never different for it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.errors import ConfigError, RunError, UnknownNameError
from kvrescue.evaluation.methods import compose
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.plan import BenchPlan, configs_by_budget
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.runs.run import Progress, RunOptions, run_plan
from kvrescue.evaluation.runs.settings import composition_of
from kvrescue.evaluation.sources import load_problems
from kvrescue.evaluation.tables.cells import Cells
from tests.cli.run import Ran
from tests.evaluation.here import here, in_this_process  # noqa: F401 - a fixture

PROBLEMS = load_problems("tiny:3")
QUICK = ("limits.max_output_tokens=40",)


def plan(**fields: Any) -> BenchPlan:
    configs = configs_by_budget("tiny", (16,), QUICK)
    chosen: dict[str, Any] = {"ns": (2,), "methods": ("best_of_n", "kv_rescue"), "matched": False}
    return BenchPlan(problems=PROBLEMS, configs=configs, **(chosen | fields))


def timeless(records: list[Record]) -> list[Record]:
    return [dataclasses.replace(record, seconds=0.0) for record in records]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Without worker processes, which the program that is killed has."""
    path = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvrescue.evaluation.runs.run.in_workers", in_this_process)
        assert run_plan(plan(), path, RunOptions(traces=1)) == 0
    return Run.read(path)


def test_every_problem_is_recorded_in_every_setting(whole: Run) -> None:
    keys = [setting.key for setting in plan().settings]
    assert list(whole.settings) == keys
    for key in keys:
        records = whole.of(key)
        assert [record.problem for record in records] == ["0", "1", "2"]
        for record in records:
            assert record.rules == {"exact": record.correct}
            assert record.correct == (record.answer == record.gold)
            assert record.steps == len(record.sources) > 0
            assert record.output_tokens == sum(u.committed_tokens for u in record.uses.values())
        assert (whole.events(key, "0") is None, whole.events(key, "1") is None) == (False, True)


def test_a_finished_run_is_not_run_again(whole: Run) -> None:
    told: list[Progress] = []
    before = (whole.path / "records.jsonl").read_bytes()
    run_plan(plan(), whole.path, told=told.append)
    assert told == []
    assert (whole.path / "records.jsonl").read_bytes() == before
    assert len(Run.read(whole.path).sessions) == len(whole.sessions) + 1


@pytest.mark.usefixtures("here")
def test_a_killed_run_goes_on_and_comes_to_the_same(whole: Run, tmp_path: Path) -> None:
    """kill -9 of the whole program in the middle of a run; then the same command again, here."""
    out = tmp_path / "run"
    command = ["bench", "run", "--out", str(out), "-n", "2"]
    command += ["--problems", "tiny:3", "--budget", "16", "--no-matched", "--no-report"]
    command += ["--method", "best_of_n", "--method", "kv_rescue", "--seeds", "1", "--traces", "1"]
    command += ["--workers", "1", "--in-flight", "1", *(f"--set={change}" for change in QUICK)]
    records = out / "records.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvrescue", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if records.exists() and records.read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = records.read_bytes()
    assert 2 <= kept.count(b"\n") <= 6
    ended = Ran(*command, "--json")
    assert ended.code == 0, ended.stderr
    assert ended.json["failures"] == 0
    assert records.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    assert records.read_bytes().count(b"\n") == 6
    found = Run.read(out)
    assert list(found.settings) == list(whole.settings)
    for key in whole.settings:
        assert timeless(found.of(key)) == timeless(whole.of(key))


@pytest.mark.usefixtures("here")
def test_progress_counts_what_is_there(tmp_path: Path) -> None:
    told: list[Progress] = []
    small = dataclasses.replace(plan(methods=("helper",)), problems=load_problems("tiny:2"))
    run_plan(small, tmp_path, told=told.append)
    assert [(p.done, p.of, p.left, p.finished) for p in told] == [(1, 2, 1, 1), (2, 2, 0, 2)]
    larger = plan(methods=("helper",))
    told.clear()
    run_plan(larger, tmp_path, told=told.append)
    assert [(p.done, p.of, p.left, p.finished) for p in told] == [(3, 3, 0, 1)]
    assert told[0].share == 1.0


@pytest.mark.usefixtures("here")
def test_failures_are_recorded_and_end_the_run_when_they_do_not_end(tmp_path: Path) -> None:
    broken = configs_by_budget("tiny", (16,), ("limits.max_context=20",))
    failing = BenchPlan(PROBLEMS, broken, methods=("helper",), ns=(1,), matched=False)
    with pytest.raises(RunError, match=r"2 problems in a row failed.*InputError"):
        run_plan(failing, tmp_path / "a", RunOptions(most_failures=2))
    assert run_plan(failing, tmp_path / "b") == 3
    found = Run.read(tmp_path / "b")
    (key,) = found.settings
    assert found.of(key) == []
    kinds = {record.failure.type for record in found.records.values() if record.failure}
    assert kinds == {"InputError"}


def test_settings() -> None:
    """Full-KV and helper do not depend on the budget; matched ones are there once."""
    configs = configs_by_budget("tiny", (64, 16))
    settings = BenchPlan(PROBLEMS, configs, ns=(1, 2), seeds=(0, 1)).settings
    cells = [(s.method, s.budget, s.n, s.seed) for s in settings]
    assert len(set(cells)) == len(cells) == len({s.key for s in settings})
    one_seed = {cell[:3] for cell in cells if cell[3] == 0}
    assert one_seed == {
        *(("full_kv", None, n) for n in (1, 2)),
        *(("helper", None, n) for n in (1, 2, 4)),
        *(("best_of_n", b, n) for b in (16, 64) for n in (1, 2, 4)),
        *((m, b, n) for m in ("interleaved", "kv_rescue") for b in (16, 64) for n in (1, 2)),
    }
    assert {cell[:3] for cell in cells if cell[3] == 1} == one_seed
    screened = {s.method: [len(p.detectors) for p in s.config.proposers.values()] for s in settings}
    assert screened["interleaved"] == [0, 0]
    assert screened["kv_rescue"] == [3, 0]


CHANGES = (
    "sampling.temperature=0.5",
    "proposers.base.detectors.entropy.threshold=1.25",
    "proposers.base.policy.evictor.window=13",
    "proposers.helper.policy.max_live_rows=7",
    "limits.max_output_tokens=99",
    "stop_at_answer=true",
)


@settings(max_examples=30)
@given(
    budget=st.integers(1, 500),
    n=st.integers(1, 64),
    seed=st.integers(-5, 5),
    changes=st.sets(st.sampled_from(CHANGES)),
)
def test_a_composition_is_the_same_whatever_budget_n_and_seed_and_nothing_else(
    budget: int, n: int, seed: int, changes: set[str]
) -> None:
    (plain,) = configs_by_budget("tiny", ()).values()
    (changed,) = configs_by_budget("tiny", (budget,), sorted(changes)).values()
    drawn = compose(changed, "kv_rescue", n).model_copy(update={"seed": seed})
    assert composition_of(drawn) == composition_of(changed)
    assert (composition_of(changed) == composition_of(plain)) == (not changes)


def test_a_plan_has_one_composition() -> None:
    configs = configs_by_budget("tiny", (16, 64))
    plans = [BenchPlan(PROBLEMS, {b: c}, methods=("best_of_n",)) for b, c in configs.items()]
    assert len({plan.composition for plan in plans}) == 1
    mixed = configs | configs_by_budget("tiny", (32,), ("sampling.temperature=0.5",))
    with pytest.raises(ConfigError, match="differ in more than the budget"):
        BenchPlan(PROBLEMS, mixed)


@pytest.mark.usefixtures("here")
def test_the_composition_of_the_last_command_is_reported(tmp_path: Path) -> None:
    """A mistyped run that was interrupted hides nothing, and its settings are not compared."""
    run_plan(plan(methods=("helper",)), tmp_path)
    wrong = configs_by_budget("tiny", (16,), (*QUICK, "sampling.temperature=3.0"))
    mistyped = dataclasses.replace(plan(methods=("full_kv",)), configs=wrong)
    told: list[Progress] = []
    run_plan(mistyped, tmp_path, told=told.append)
    assert told
    assert [cell.method for cell in Cells.of(Run.read(tmp_path))] == ["full_kv"]
    run_plan(plan(methods=("helper",)), tmp_path)
    cells = Cells.of(Run.read(tmp_path))
    assert [cell.method for cell in cells] == ["helper"]
    assert list(cells.others) == [mistyped.composition]


def test_prompts_of_the_problems_reach_models_that_have_none(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"id": "a", "question": "1 + 1?", "answer": "2"}\n')
    problems = load_problems(str(path))
    (config,) = configs_by_budget("smollm2", (), problems=problems).values()
    plain = dataclasses.replace(problems, system="Be brief: \\boxed{} 'quoted' \"twice\"")
    (unset,) = configs_by_budget(
        "tiny", (), ("proposers.helper.policy.system=mine",), problems=plain
    ).values()
    systems = {name: p.policy.model_dump()["system"] for name, p in unset.proposers.items()}
    assert systems == {"base": plain.system, "helper": "mine"}
    assert {p.policy.model_dump()["system"] for p in config.proposers.values()} == {problems.system}


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"ns": ()}, ConfigError, "ns: name at least one"),
        ({"ns": (0,)}, ConfigError, "n = 0"),
        ({"ns": (4097,)}, ConfigError, "n = 4097: expected a whole number from 1 to 4096"),
        ({"ns": (2049,), "matched": True}, ConfigError, "n = 2049"),
        ({"seeds": ()}, ConfigError, "seeds"),
        ({"methods": ("kv_rescu",)}, UnknownNameError, "did you mean 'kv_rescue'"),
    ],
)
def test_plans_that_make_no_sense(
    fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        plan(**fields)


@pytest.mark.parametrize(
    ("budgets", "overrides", "text"),
    [
        ((0,), (), "budget = 0"),
        ((), ("proposers.base.policy.evictor=null",), "no evictor"),
        ((), ("seed=3",), "override 'seed=3': N and seeds are set for every setting"),
        ((), ("proposers.base.candidates=3",), "N and seeds"),
        ((16,), ("proposers.base.policy.evictor.budget=3",), r"budgets \[16\] are asked for"),
    ],
)
def test_configurations_that_make_no_sense(
    budgets: tuple[int, ...], overrides: tuple[str, ...], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        configs_by_budget("tiny", budgets, overrides)

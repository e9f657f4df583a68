"""`kvrescue bench run`: what it refuses, and one small run through to its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.run import Ran, fails
from tests.evaluation.here import here  # noqa: F401 - a fixture


@pytest.mark.parametrize(
    ("code", "kind", "arguments", "text"),
    [
        (4, "ConfigError", ["--budget", "0"], "budget = 0"),
        (4, "ConfigError", ["-n", "0"], "n = 0"),
        (4, "ConfigError", ["-n", "99999999"], "n = 99999999: expected a whole number from 1 to"),
        (4, "ConfigError", ["--seeds", "0"], "seeds = 0"),
        (4, "ConfigError", ["--seeds", "99999999"], "seeds = 99999999"),
        (4, "ConfigError", ["--workers", "99999999"], "workers = 99999999"),
        (4, "ConfigError", ["--set", "proposers.helper.candidates=3"], "(-n, --seed)"),
        (4, "ConfigError", ["--workers", "0"], "workers = 0"),
        (4, "ConfigError", ["--in-flight", "0"], "in-flight = 0"),
        (4, "ConfigError", ["--traces", "-1"], "traces = -1"),
        (4, "ConfigError", ["--limit", "0"], "limit = 0"),
        (4, "UnknownNameError", ["--method", "kv_resque"], "did you mean 'kv_rescue'"),
        (4, "UnknownNameError", ["--problems", "gms8k"], "did you mean 'gsm8k'"),
        (3, "InputError", ["--problems", "tiny:none"], "tiny:COUNT"),
        (3, "InputError", ["--problems", "gsm8k", "--data", "nothing.jsonl"], "No such file"),
        (4, "ConfigError", ["--set", "proposers.base.policy.evictor=null"], "no evictor"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, code: int, kind: str, arguments: list[str], text: str
) -> None:
    out = tmp_path / "run"
    assert text in fails(code, kind, "bench", "run", "--out", str(out), *arguments)
    assert not out.exists()


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file")
    assert "cannot be used" in fails(14, "RunError", "bench", "run", "--out", out)
    assert "holds no run" in fails(14, "RunError", "bench", "report", str(tmp_path))


@pytest.mark.usefixtures("here")
def test_a_small_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["bench", "run", "--out", str(out), "--problems", "tiny:2", "-n", "1", "--json"]
    arguments += ["--set", "limits.max_output_tokens=30", "--workers", "1", "--traces", "1"]
    ran = Ran(*arguments)
    assert ran.code == 0, ran.stderr
    assert ran.json == {
        "run": str(out),
        "failures": 0,
        "report": str(out / "report" / "report.md"),
    }
    assert "100% of the run" in ran.stderr
    assert "kv_rescue, B 16, N 1, seed 0:" in ran.stderr
    data = json.loads((out / "report" / "report.json").read_text())
    again = Ran("bench", "report", str(out), "--json")
    assert again.json == data
    assert Ran(*arguments).json == ran.json  # nothing is run again, the report is the same
    assert json.loads((out / "report" / "report.json").read_text()) == data

"""The script for a GPU, run on the CPU: its checks pass, and a failure is one check's alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import checks
from benchmarks.gpu.checks import CheckError, NotHereError, Place

ROOT = Path(__file__).parents[2]


def script(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run"]
    ended = subprocess.run([*command, "--out", str(out), *arguments], cwd=ROOT, timeout=300)
    return ended.returncode, json.loads((out / "report.json").read_text())


def test_checks_of_the_torch_engine_pass(tmp_path: Path) -> None:
    wanted = [
        "evictors_choose_as_on_the_cpu",
        "float32_equals_the_cpu",
        "a_shared_prefix_equals_copies",
    ]
    status, report = script(tmp_path, "--only", *wanted)
    assert [(c["name"], c["status"], c["why"]) for c in report["checks"]] == [
        (name, "passed", "") for name in wanted
    ]
    assert status == 0
    assert report["place"] == {"device": "cpu", "quick": True}
    assert report["checks"][1]["seen"]["rkv, interval 1"]["identical"] == 2
    assert report["checks"][2]["seen"]["64 rows, prefix 192"]["shared_ms"] > 0


def test_what_there_was_no_time_for_is_told(tmp_path: Path) -> None:
    status, report = script(tmp_path, "--only", "device", "--limit", "0")
    assert status == 1
    (check,) = report["checks"]
    assert (check["status"], check["why"]) == ("broken", "no time was left")


def test_a_failed_check_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(place: Place, seen: dict[str, Any]) -> None:
        seen["this"] = 1
        raise CheckError("wrong")

    def breaks(place: Place, seen: dict[str, Any]) -> None:
        raise ZeroDivisionError("oh")

    def elsewhere(place: Place, seen: dict[str, Any]) -> None:
        raise NotHereError("needs more")

    def passes(place: Place, seen: dict[str, Any]) -> None:
        seen["that"] = 2

    group = {f.__name__: f for f in (fails, breaks, elsewhere, passes)}
    monkeypatch.setitem(checks.CHECKS, "fake", group)
    out = tmp_path / "lines"
    checks.run("fake", list(group), Place("cpu", quick=True), out)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(f["name"], f["status"], f["why"]) for f in found] == [
        ("fails", "failed", "wrong"),
        ("breaks", "broken", "ZeroDivisionError: oh"),
        ("elsewhere", "not run", "needs more"),
        ("passes", "passed", ""),
    ]
    assert found[0]["seen"] == {"this": 1}
    assert found[3]["seen"] == {"that": 2}

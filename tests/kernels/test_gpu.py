"""The checks of the kernels in the prepared run for a GPU, on the CPU."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.test_gpu import script


def test_checks_of_the_kernels_pass(tmp_path: Path) -> None:
    wanted = [
        "kernels_are_chosen",
        "rkv_scores_by_kernels",
        "moves_by_kernels",
        "statistics_by_kernels",
    ]
    _, report = script(tmp_path, "--only", *wanted)
    assert [(c["name"], c["status"], c["why"]) for c in report["checks"]] == [
        (name, "passed", "") for name in wanted
    ]
    found = report["checks"][1]["seen"]["bfloat16, 33 entries"]
    assert found["kept_entries_that_differ"] == 0
    assert found["floor_ms"] > 0

"""Command lines of single benchmarks: nothing is measured before they are right."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from benchmarks import report, suite
from benchmarks.arguments import told
from kvrescue.errors import RunError

WRONG = [
    ("alpha", ["--rows", "0"], "--rows: '0': expected a whole number of at least 1"),
    ("alpha", ["--turns", "0"], "--turns: '0'"),
    ("alpha", ["--budgets", "64", "0"], "--budgets: '0'"),
    ("alpha", ["--intervals", "-1"], "--intervals: '-1'"),
    ("alpha", ["--rows", "many"], "--rows: 'many': expected a whole number of at least 1"),
    ("compiled_step", ["--rows", "0"], "--rows: '0'"),
    ("decode_profile", ["--tokens", "4"], "--tokens: '4': expected a whole number of at least 5"),
    ("decode_profile", ["--side", "full"], "invalid choice: 'full'"),
    ("shared_prefix", ["attention", "--turns", "-1"], "--turns: '-1'"),
    ("shared_prefix", ["engine", "--tokens", "0"], "--tokens: '0'"),
    ("shared_prefix", ["--prefix", "0"], "--prefix: '0'"),
    ("vllm_overheads", ["--live", "3"], "--live: '3': expected a whole number of at least 4"),
    ("vllm_speed", ["--turns", "0"], "--turns: '0'"),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), WRONG)
def test_what_cannot_be_measured_is_a_line_of_usage(
    name: str,
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(f"benchmarks.{name}").main()
    assert caught.value.code == 2
    usage, error = capsys.readouterr().err.split(f"python -m benchmarks.{name}: error: ")
    assert usage.startswith(f"usage: python -m benchmarks.{name} ")
    assert expected in error


@pytest.mark.parametrize("out", ["", "  "])
def test_no_report_goes_into_the_folder_one_stands_in(
    out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        suite.main(["--smoke", "--out", out])
    assert caught.value.code == 2
    assert f"--out: {out!r}: expected a folder" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["nowhere.md", "."])
def test_a_page_that_cannot_be_written(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.main(["--smoke", "--only", "kv_bytes", "--out", str(tmp_path)])
    capsys.readouterr()
    assert report.main([str(tmp_path), str(tmp_path / page)]) == RunError("").exit_code
    told_ = capsys.readouterr().err
    assert told_.startswith("RunError: the page ")
    assert told_.endswith("; name one that can be written\n")


def test_an_error_of_ours_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise RunError("no")

    assert told(fails) == RunError("").exit_code
    assert capsys.readouterr().err == "RunError: no\n"
    assert told(lambda: None) == 0

"""The suite: one member's end is its own, and whatever happens a report is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments, suite
from benchmarks.members import MEMBERS
from benchmarks.report import Report, read
from kvrescue.errors import ConfigError
from kvrescue.evaluation.files import locked
from tests.benchmarks.fakes import FAKES, install
from tests.processes import alive

ROOT = Path(__file__).parents[2]
_FAKED = (
    # Whoever runs the tests in the background may have SIGINT ignored, which is inherited.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import sys; from tests.benchmarks.fakes import install; install(); "
    "from benchmarks.suite import main; sys.exit(main())"
)


@pytest.fixture
def fakes() -> Iterator[None]:
    real = dict(MEMBERS)
    install()
    yield
    MEMBERS.clear()
    MEMBERS.update(real)


def report_of(folder: Path) -> Report:
    found = read(folder)
    assert found is not None
    return found


def statuses(folder: Path) -> dict[str, str]:
    return {o.name: o.status for o in report_of(folder).outcomes}


def test_the_list_names_every_member(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in MEMBERS)


def test_the_nearest_name_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = suite.main(["--only", "schedulling", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert status == ConfigError.exit_code
    assert "UnknownNameError" in said
    assert "'schedulling'; did you mean 'scheduling'?" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options", [["--threads", "0"], ["--limit", "0"], ["--limit", "nan"], ["--limit", "-1"]]
)
def test_senseless_options_are_refused(
    options: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert suite.main([*options, "--out", str(tmp_path / "out")]) == ConfigError.exit_code
    assert options[0][2:] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("fakes")
def test_what_fails_dies_or_lies_does_not_stop_the_others(tmp_path: Path) -> None:
    status = suite.main(["--smoke", "--only", "passes", "fails", "dies", "lies", "again",
                         "--out", str(tmp_path)])  # fmt: skip
    assert status == 1
    assert statuses(tmp_path) == {
        "passes": "done",
        "fails": "failed",
        "dies": "failed",
        "lies": "failed",
        "again": "done",
    }
    report = report_of(tmp_path)
    why = {o.name: o.why for o in report.outcomes}
    assert "ZeroDivisionError: oh" in why["fails"]
    assert "-9" in why["dies"]
    assert why["passes"] == ""
    passed = report["passes"]
    assert passed is not None
    assert passed.ratios[0].name == "two over one, smoke"
    assert passed.versions["python"]
    assert passed.cpu > 0
    page = (tmp_path / "report.md").read_text()
    assert "two over one" in page
    assert "fails: failed: " in page


@pytest.mark.usefixtures("fakes")
def test_a_report_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    suite.main(["--smoke", "--only", "passes", "fails", "--out", str(tmp_path)])
    for file in ("report.json", "report.md"):
        text = (tmp_path / file).read_text()
        for place in (ROOT, Path.home(), tmp_path, Path(sys.executable).parent):
            assert str(place) not in text
        assert os.uname().nodename not in text
    assert str(ROOT) in (tmp_path / "fails.log").read_text()  # so there was something to hide


@pytest.mark.usefixtures("fakes")
def test_what_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tells = tmp_path / "tells"
    monkeypatch.setenv("HANGS_TELLS", str(tells))
    limit = 8.0
    while not tells.exists():  # on a busy machine it may need longer to get there
        options = ["--smoke", "--only", "hangs", "again", "--limit", str(limit)]
        assert suite.main([*options, "--out", str(tmp_path / "out")]) == 1
        assert statuses(tmp_path / "out")["hangs"] == "timed out"
        limit *= 2
    hung = report_of(tmp_path / "out")["hangs"]
    assert hung is not None
    assert hung.why.startswith("more than ")
    numbers = [int(word) for word in tells.read_text().split()]
    assert len(numbers) == 2
    assert not any(alive(number) for number in numbers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_leaves_what_is_finished(tmp_path: Path, number: signal.Signals) -> None:
    tells, out = tmp_path / "tells", tmp_path / "out"
    only = ["--only", "passes", "hangs", "again"]
    process = subprocess.Popen(
        [sys.executable, "-c", _FAKED, "--smoke", "--out", str(out), *only],
        cwd=ROOT,
        env=os.environ | {"HANGS_TELLS": str(tells)},
        stderr=subprocess.PIPE,
    )
    while not tells.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 128 + number
    assert statuses(out) == {"passes": "done", "hangs": "interrupted"}
    assert "two over one" in (out / "report.md").read_text()
    numbers = [int(word) for word in tells.read_text().split()]
    assert not any(alive(number) for number in numbers)


@pytest.mark.usefixtures("fakes")
def test_what_is_measured_again_takes_its_old_place(tmp_path: Path) -> None:
    options = ["--smoke", "--out", str(tmp_path)]
    suite.main([*options, "--only", "passes", "fails"])
    file = tmp_path / "report.json"
    file.write_text(file.read_text().replace("ZeroDivisionError", "what it was before"))
    before = {o.name: o for o in report_of(tmp_path).outcomes}
    assert "what it was before" in before["fails"].why
    suite.main([*options, "--only", "again", "fails"])
    after = {o.name: o for o in report_of(tmp_path).outcomes}
    assert list(after) == [name for name in FAKES if name in ("passes", "fails", "again")]
    assert after["passes"] == before["passes"]
    assert "ZeroDivisionError" in after["fails"].why


@pytest.mark.usefixtures("fakes")
def test_resuming_measures_what_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--smoke", "--out", str(tmp_path), "--only", "passes", "fails", "again"]
    suite.main([*options[:4], "passes", "fails"])
    measured: list[str] = []
    run = suite.run_member

    def noted(member: Any, *rest: Any) -> Any:
        measured.append(member.name)
        return run(member, *rest)

    monkeypatch.setattr(suite, "run_member", noted)
    suite.main([*options, "--resume"])
    assert measured == ["fails", "again"]


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("change", [{"size": "full"}, {"threads": 2}, {"machine": {"cores": 0}}])
def test_what_was_measured_otherwise_is_not_mixed_in(
    tmp_path: Path, change: Mapping[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--smoke", "--out", str(tmp_path), "--only", "passes"]
    assert suite.main(options) == 0
    file = tmp_path / "report.json"
    changed = json.dumps(json.loads(file.read_text()) | change)
    file.write_text(changed)
    assert suite.main(options) == ConfigError.exit_code
    assert "use another --out" in capsys.readouterr().err
    assert file.read_text() == changed


@pytest.mark.usefixtures("fakes")
def test_whoever_measures_everything_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(MEMBERS):
        if name not in ("passes", "again"):
            monkeypatch.delitem(MEMBERS, name)
    assert suite.main(["--smoke", "--out", str(tmp_path), "--threads", "2"]) == 0
    assert suite.main(["--smoke", "--out", str(tmp_path)]) == 0
    report = report_of(tmp_path)
    assert report.threads == 1
    assert statuses(tmp_path) == {"passes": "done", "again": "done"}


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"members": 3}',
        "\x00",
        '{"format": 99, "size": "smoke", "threads": 1, "machine": {}, "members": []}',
        '{"format": 1, "size": "smoke", "threads": 1, "machine": null, "members": []}',
        '{"format": 1, "size": "smoke", "threads": [], "machine": {}, "members": []}',
    ],
)
def test_a_file_that_is_no_report_is_left_alone(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    assert suite.main(["--smoke", "--out", str(tmp_path), "--only", "passes"]) != 0
    assert "no report of this suite" in capsys.readouterr().err
    assert file.read_text() == text


def test_without_its_environment_a_member_is_not_run_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PEERS_VENV", "VLLM_VENV"):
        monkeypatch.setenv(variable, str(tmp_path / "nothing"))
    names = [m.name for m in MEMBERS.values() if m.needs != "torch"]
    assert suite.main(["--smoke", "--out", str(tmp_path), "--only", *names]) == 1
    assert statuses(tmp_path) == dict.fromkeys(names, "not run")
    written = (tmp_path / "report.md").read_text()
    assert written.count("nothing: no Python there): make setup-peers") == len(names)


@pytest.mark.usefixtures("fakes")
def test_a_folder_has_one_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(tmp_path / "suite.lock"):
        assert suite.main(["--smoke", "--out", str(tmp_path), "--only", "passes"]) != 0
    assert "another process writes to" in capsys.readouterr().err
    assert suite.main(["--smoke", "--out", str(tmp_path), "--only", "passes"]) == 0


@pytest.mark.usefixtures("fakes")
def test_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert suite.main(["--smoke", "--out", str(tmp_path / "file"), "--only", "passes"]) != 0
    assert "cannot be used" in capsys.readouterr().err


def test_vllm_is_taken_from_either_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PEERS_VENV", "VLLM_VENV"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    python = tmp_path / "VLLM_VENV" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert environments.interpreter("vllm") == str(python)
    assert environments.interpreter("its_hub") is None
    assert environments.interpreter("torch") == sys.executable


def test_the_makefile_knows_the_targets_that_are_named() -> None:
    targets = (ROOT / "Makefile").read_text()
    assert "\nsetup-peers:" in targets
    assert "\nbench:" in targets

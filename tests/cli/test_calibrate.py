"""`kvrescue calibrate` and `--calibration`: refusals, one made-up run, one real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrescue.config import load_config
from kvrescue.evaluation.methods import Method
from kvrescue.types import StopReason
from tests.calibration.parts import OVERRIDES, candidate, setting, write_run
from tests.cli.run import Ran, fails
from tests.evaluation.here import here  # noqa: F401 - a fixture

METHODS: tuple[Method, ...] = ("full_kv", "helper", "best_of_n", "interleaved", "kv_rescue")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 problems that a healthy step solves, and that a long incoherent one does not."""
    good = [(True, [[candidate("base", [1.0 + i / 100, 1.0])]]) for i in range(40)]
    cut = [candidate("base", [4.0 + i / 100] * 24, StopReason.LENGTH) for i in range(40)]
    wrong = [(False, [[one]]) for one in cut]
    helper = [(False, [[candidate("helper", [2.0, 2.0])]])] * 40
    fill = dict(zip(METHODS, (good, helper, wrong, good, good), strict=True))
    path = tmp_path_factory.mktemp("calibrate") / "run"
    write_run(path, [setting(name) for name in METHODS], fill)
    return str(path)


def test_thresholds_are_proposed_shown_and_written(run: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["calibrate", run, "--false-aborts", "0.2", "--out", str(out)]
    ran = Ran(*arguments)
    assert ran.code == 0, ran.stderr
    assert "--set proposers.base.detectors.entropy.threshold=3.0" in ran.stdout
    assert "proposed > 3 0 % (< 13.9) 0/20 100 % (> 86.1) 20/20" in " ".join(ran.stdout.split())
    assert f"written: {out / 'calibration.json'}" in ran.stdout
    names = sorted(file.name for file in out.iterdir())
    assert names == [
        "calibration.json",
        "detectors-b16.yaml",
        "figure_3_b16.png",
        "figure_3_b16.svg",
    ]
    data = Ran(*arguments, "--json").json
    assert data == json.loads((out / "calibration.json").read_text())
    entropy = data["budgets"][0]["detectors"][0]
    assert (entropy["present"], entropy["proposed"]) == (2.5, 3.0)
    assert entropy["measured"]["caught"]["candidates"] == 20  # the other half of the problems
    assert data["made_for"]["tokenizer"] == "tok"
    assert str(tmp_path) not in json.dumps(data)  # no paths of this machine


@pytest.fixture(scope="module")
def calibration(run: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("out")
    assert Ran("calibrate", run, "--false-aborts", "0.2", "--out", str(out)).code == 0
    return str(out / "calibration.json")


SAME = [argument for override in OVERRIDES for argument in ("--set", override)]


def test_a_calibration_makes_a_configuration(calibration: str) -> None:
    ran = Ran("config", *SAME, "--calibration", calibration)
    assert ran.code == 0, ran.stderr
    assert ran.stdout.startswith("# calibrated by kvrescue ")
    assert "# for tiny/base, evictor rkv: budget 16, " in ran.stdout
    assert ran.stderr.startswith("calibration: gzip.threshold stays at 0.7: ")
    expected = load_config("tiny", [*OVERRIDES, "proposers.base.detectors.entropy.threshold=3.0"])
    again = Ran("config", *SAME, "--calibration", calibration, "--json").json
    assert again["config"] == expected.model_dump(mode="json")


def test_a_calibration_of_something_else_is_refused(calibration: str) -> None:
    other = "proposers.base.policy.evictor.budget=32"
    text = fails(15, "CalibrationError", "config", "--set", other, "--calibration", calibration)
    assert "budget 32 was not calibrated, only 16" in text
    text = fails(15, "CalibrationError", "config", "--calibration", calibration)
    assert "window = 4, calibrated with 2" in text
    text = fails(15, "CalibrationError", "config", "--calibration", "nothing.json")
    assert "'nothing.json' cannot be read" in text


def test_a_calibration_with_another_tokenizer_is_refused(calibration: str) -> None:
    """The models are of the same name; only what they write tells them apart."""
    ran = Ran("solve", "x", *SAME, "--calibration", calibration, "--set", "limits.max_steps=1")
    assert ran.code == 15
    assert "error: the base's tokenizer is " in ran.stderr
    assert "the calibration was made with tok" in ran.stderr
    assert "calibration: calibrated with another limits: " in ran.stderr


@pytest.mark.parametrize(
    ("code", "kind", "arguments", "text"),
    [
        (15, "CalibrationError", [], "no threshold can be proposed"),
        (4, "ConfigError", ["--false-aborts", "0"], "false-aborts = 0.0"),
        (4, "UnknownNameError", ["--healthy", "full_kv"], "did you mean 'full-kv'"),
        (4, "UnknownNameError", ["--degenerate", "cuts"], "did you mean 'cut'"),
        (4, "UnknownNameError", ["--preset", "tyni"], "did you mean 'tiny'"),
        (15, "CalibrationError", ["--budget", "64"], "budget 64"),
        (15, "CalibrationError", ["--set", "proposers.base.detectors=[]"], "nothing to calibrate"),
    ],
)
def test_what_is_refused(
    run: str, tmp_path: Path, code: int, kind: str, arguments: list[str], text: str
) -> None:
    out = tmp_path / "out"
    assert text in fails(code, kind, "calibrate", run, "--out", str(out), *arguments)
    assert not out.exists()


def test_refusals_say_how_much_is_needed(run: str) -> None:
    text = fails(15, "CalibrationError", "calibrate", run)
    assert "from 20 problems of the half that chooses; a bound of 0.01 needs 299 at least" in text


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    assert "holds no run" in fails(14, "RunError", "calibrate", str(tmp_path))


@pytest.mark.usefixtures("here")
def test_a_real_run(tmp_path: Path) -> None:
    """From the trio's own candidates to a configuration that solves with the new thresholds."""
    out = tmp_path / "run"
    arguments = ["bench", "run", "--out", str(out), "--problems", "tiny:12", "-n", "1"]
    arguments += ["--no-matched", "--seeds", "1", "--traces", "12", "--workers", "1"]
    arguments += ["--method", "best_of_n", "--method", "interleaved", "--no-report"]
    arguments += ["--set", "limits.max_output_tokens=96"]
    ran = Ran(*arguments)
    assert ran.code == 0, ran.stderr
    data = Ran("calibrate", str(out), "--preset", "tiny", "--false-aborts", "0.5", "--json").json
    (at,) = data["budgets"]
    assert at["counts"]["healthy"] > 12
    proposed = [found for found in at["detectors"] if found["proposed"] is not None]
    assert proposed
    for found in proposed:
        assert found["chosen_on"]["false_aborts"]["high"] <= 0.5
    calibration = str(out / "calibration" / "calibration.json")
    question = Ran("problem").stdout
    solved = Ran("solve", question, "--calibration", calibration, "--json")
    assert solved.code == 0, solved.stderr
    assert "stays at" in solved.stderr or len(proposed) == len(at["detectors"])

"""What only a process of its own shows: start-up, Ctrl-C, and readers that go away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_interrupts import SAID
from tests.processes import children, wait_for_end

ROOT = Path(__file__).parents[2]


def start(*arguments: str, code: str | None = None) -> subprocess.Popen[str]:
    command = ["-c", code] if code is not None else ["-m", "kvrescue", *arguments]
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["demo", "--help"],
        ["plugins"],
        ["plugins", "show", "policy", "torch"],
        ["plugins", "show", "scorer", "qwen_prm"],
        ["problem"],
        ["cost", "--memory-gib", "80", "--tokens", "MATH500", "--budget", "64"],
        ["bench", "paper"],
        ["config", "--preset", "no"],
        ["config", "--preset", "tiny"],
        ["config", "--preset", "smollm2", "--json"],
        ["config", "--set", "proposers.base.policy.evictor.budget=x"],
    ],
)
def test_no_framework_before_it_is_needed(arguments: list[str]) -> None:
    code = f"""
import sys
from kvrescue.cli.app import app
try:
    app({arguments!r})
except SystemExit:
    pass
heavy = {{"torch", "transformers", "numpy", "scipy"}} & set(sys.modules)
sys.exit(f"imported: {{heavy}}" if heavy else 0)
"""
    process = start(code=code)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors


def test_configurations_are_shown_without_the_extras_and_only_building_needs_them() -> None:
    hide = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'numpy']))\n"
    run = "from kvrescue.cli.app import app\napp({})\n"
    shown = start(code=hide + run.format(["config", "--preset", "tiny"]))
    output, errors = shown.communicate(timeout=240)
    assert (shown.returncode, errors) == (0, "")
    assert "model: tiny/base" in output
    refused = start(code=hide + run.format(["solve", "q", "--preset", "tiny"]))
    _, errors = refused.communicate(timeout=240)
    assert refused.returncode == 7
    assert errors.startswith("error: proposers.base.policy: policy 'torch' needs the package")
    assert "pip install 'kvrescue[torch]'" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupt_keeps_the_trace(
    config: str, tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    trace = tmp_path / "trace.jsonl"
    slow = [
        f"proposers.{name}.policy.{option}"
        for name in ("base", "helper")
        for option in ("delay=0.05", "eos=0", "words=[step]")
    ]
    overrides = [part for override in slow for part in ("--set", override)]
    process = start("solve", "q", "--config", config, "--trace", str(trace), *overrides)
    try:
        deadline = time.monotonic() + 240
        while not trace.exists() or trace.read_text().count("\n") < 6:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == code
    assert errors == SAID[sent]
    events = [json.loads(line)["event"] for line in trace.read_text().splitlines()]
    assert events[0] == "trajectory_started"
    assert "step_committed" in events
    assert "trajectory_finished" not in events


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_leaves_no_process(sent: signal.Signals, code: int) -> None:
    process = start("demo", "--problems", "2", "--workers", "2")
    try:
        deadline = time.monotonic() + 240
        found: list[str] = []
        while len(found) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
            found = children(process.pid)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == code
    assert errors == SAID[sent]
    wait_for_end(found)


def test_a_killed_worker_is_told_with_its_way_out() -> None:
    process = start("demo", "--problems", "2", "--workers", "4", "--json")
    try:
        deadline = time.monotonic() + 240
        found: list[str] = []
        while len(found) < 5:  # one of them tracks resources
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
            found = children(process.pid)
        killed = found[-1]
        os.kill(int(killed), signal.SIGKILL)
        output, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    error = json.loads(output)["error"]
    assert (process.returncode, error["type"], error["exit_code"]) == (13, "WorkerError", 13)
    assert f"process {killed}, by SIGKILL" in error["message"]
    assert "try --workers 2, or --workers 1" in error["message"]
    assert errors == f"error: {error['message']}\n"
    wait_for_end(found)


def test_reader_that_goes_away(config: str) -> None:
    process = start("config", "--config", config, code=None)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(timeout=240) == 141
    assert errors == ""
    process.stderr.close()

"""Worker processes: every message arrives once, and whatever ends them is told."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvrescue.errors import ConfigError, KVRescueError, WorkerError
from kvrescue.evaluation.workers import in_workers
from tests.evaluation.work import count_up, misbehave
from tests.processes import alive


@pytest.mark.parametrize(("workers", "tasks"), [(1, 3), (2, 5), (4, 2)])
def test_every_message_arrives_once_and_in_order(workers: int, tasks: int) -> None:
    given = [(100 * number, number) for number in range(tasks)]
    got: dict[int, list[object]] = {number: [] for number in range(tasks)}
    ended = []
    for found in in_workers(count_up, given, workers):
        if found.done:
            ended.append(found.task)
        else:
            assert found.task not in ended
            got[found.task].append(found.message)
    assert sorted(ended) == list(range(tasks))
    for number, (start, count) in enumerate(given):
        assert got[number] == [(start, start + i) for i in range(count)]


def test_no_task_no_worker() -> None:
    assert list(in_workers(count_up, [], 2)) == []


@pytest.mark.parametrize(
    ("task", "kind", "text"),
    [
        ("typed", ConfigError, "budget = 0: at least 1"),
        ("untyped", ValueError, "plain"),
        ("unsendable", KVRescueError, "ValueError: with a lambda"),
        ("killed", WorkerError, "by SIGKILL"),
        ("exit", WorkerError, "with exit code 3"),
    ],
)
def test_how_a_task_ends_is_told_and_the_others_end_with_it(
    task: str, kind: type[Exception], text: str
) -> None:
    pids: list[object] = []

    def run() -> None:
        pids.extend(found.message for found in in_workers(misbehave, ["endless", task], 2))

    with pytest.raises(kind, match=text):
        run()
    assert pids
    assert not any(isinstance(pid, int) and alive(pid) for pid in pids)


def test_leaving_early_ends_the_workers_at_once() -> None:
    started = time.monotonic()
    with contextlib.closing(in_workers(misbehave, ["endless", "endless"], 2)) as found:
        pids = [next(found).message for _ in range(2)]
    assert time.monotonic() - started < 600  # the tasks would take an hour
    assert all(isinstance(pid, int) and not alive(pid) for pid in pids)


def program(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, whose workers may import the tests' work."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_no_worker_hears_ctrl_c_not_even_the_first() -> None:
    """In a process of its own: the first one brings multiprocessing's resource tracker along."""
    code = """
import json
from kvrescue.evaluation.workers import in_workers
from tests.evaluation.work import blocked
if __name__ == "__main__":
    found = [found.message for found in in_workers(blocked, [0, 1, 2], 3)]
    print(json.dumps([sorted(numbers) for numbers in found if numbers is not None]))
"""
    done = program(code)
    masks = json.loads(done.stdout)
    assert (len(masks), done.stderr) == (3, "")
    for mask in masks:
        assert {signal.SIGINT, signal.SIGHUP} <= set(mask)
        assert signal.SIGTERM not in mask


@pytest.mark.parametrize("task", ["shown", "hidden", "lock", "memory"])
@pytest.mark.parametrize("ended", ["left", "killed"])
def test_what_a_worker_held_is_cleared_away_without_a_word(task: str, ended: str) -> None:
    """Semaphores and shared memory have names in the system, which a killed process leaves."""
    code = f"""
import contextlib, json, os, signal
from kvrescue.evaluation.workers import in_workers
from tests.evaluation.work import hold
if __name__ == "__main__":
    with contextlib.closing(in_workers(hold, [{task!r}], 1)) as found:
        print(json.dumps(next(found).message), flush=True)
        if {ended!r} == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
"""
    done = program(code)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL if ended == "killed" else 0, "")
    held = json.loads(done.stdout)
    assert held
    assert not any(Path(name).exists() for name in held)

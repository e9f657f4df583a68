"""Waiting gives what was waited for, and Ctrl-C ends it even if nothing wakes the main thread."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from kvrescue.waiting import TURN, next_of, until_done, value_of

WAITS = {
    "value_of": "value_of(Future())",
    "until_done": "until_done(Future())",
    "next_of": "next_of(queue.SimpleQueue())",
    "crew": "list(in_workers(stuck, [1000], 1))",
    "grade": "Grader(1, timeout=1000).grade(r'\\boxed{hang}', 'x')",
    "solve": "rescue.solve('Why?')",
    "stream": "list(rescue.stream('Why?'))",
    "solve_many": "list(rescue.solve_many(['Why?']))",
}
PROGRAM = """
import asyncio, queue, signal, threading, time
from concurrent.futures import Future
from kvrescue import Policy, Proposer, Rescue, Scorer
from kvrescue.evaluation.grading import Grader, RuleName, pool
from kvrescue.detectors.base import Source
from kvrescue.evaluation.workers import in_workers
from kvrescue.waiting import next_of, until_done, value_of
from tests.core.test_waiting import stuck

for rule in RuleName:
    pool._RULES[rule] = "tests.evaluation.grading.rules:same"

class Stuck(Policy):
    source = Source(vocab_size=2, max_step_tokens=2)

    async def open(self, question, name):
        await asyncio.Event().wait()

class Never(Scorer):
    async def score(self, context, candidates):
        return []

def elsewhere():
    # The handler's flag is set in this thread: nothing interrupts the main one's waiting.
    time.sleep(1.0)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(1000)

rescue = Rescue([Proposer(Stuck(), n=1)], scorer=Never())
threading.Thread(target=elsewhere, daemon=True).start()
try:
    {wait}
except KeyboardInterrupt:
    print("heard", flush=True)
"""


def stuck(_: int) -> Iterator[None]:
    """The work of a process that says nothing."""
    time.sleep(1000)
    yield


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_a_signal_that_wakes_nobody_is_heard(wait: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{wait}", wait)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,
    )
    assert (done.stdout, done.returncode) == ("heard\n", 0), done.stderr


@pytest.mark.parametrize("error", [None, ValueError("no"), TimeoutError("late")])
def test_a_future_gives_what_it_holds(error: Exception | None) -> None:
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    timer = threading.Timer(TURN / 5, _finish, [future, error])
    timer.start()
    if error is None:
        assert value_of(future) == 3
    else:
        with pytest.raises(type(error)) as raised:
            value_of(future)
        assert raised.value is error
    until_done(future)
    timer.join()


def test_a_cancelled_future_is_done() -> None:
    future: Future[int] = Future()
    future.cancel()
    until_done(future)
    with pytest.raises(CancelledError):
        value_of(future)


def test_items_come_in_their_order() -> None:
    source: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    timer = threading.Timer(TURN * 1.5, source.put, [2])  # more than one turn
    source.put(None)
    timer.start()
    assert [next_of(source), next_of(source)] == [None, 2]
    timer.join()


def _finish(future: Future[int], error: Exception | None) -> None:
    if error is None:
        future.set_result(3)
    else:
        future.set_exception(error)

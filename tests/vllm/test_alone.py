"""Engines in several threads: vLLM keeps what is current in globals of the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.policies.vllm.alone import alone, alone_on_loop, in_some_turn
from tests.policies.parts import BASE, questions, step
from tests.vllm.parts import vllm_policy
from tests.vllm.test_threads import printed

BUILDS = """
import os, threading
from kvrescue import Rescue
from kvrescue.evaluation.bill import bill_at
from tests.vllm.test_rescue import ON_VLLM

prm = ["scorer.kind=vllm_prm", "scorer.kv_cache_bytes=33554432", "limits.max_steps=3"]
question = bill_at("test", 0, 1).question
told = []

def build():
    with Rescue.from_config("tiny", [*ON_VLLM, *prm]) as rescue:
        told.append([step.text for step in rescue.solve(question, seed=1).steps])

stdout = os.readlink("/proc/self/fd/1")
threads = [threading.Thread(target=build) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert os.readlink("/proc/self/fd/1") == stdout
print(len(told), told[0] == told[1] == told[2])
"""


def test_three_are_built_and_used_at_the_same_time() -> None:
    assert printed(BUILDS) == "3 True\n"


def test_whoever_is_alone_may_go_on_and_the_others_wait() -> None:
    order: list[str] = []

    def other() -> None:
        with alone():
            order.append("other")

    thread = threading.Thread(target=other)
    with alone(), alone():
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


@contextlib.contextmanager
def another_has_the_turn() -> Iterator[None]:
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with alone():
            begun.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def test_a_loop_goes_on_while_another_thread_has_the_turn() -> None:
    """What waits can be cancelled, is not done then, and is done in its turn otherwise."""
    done: list[str] = []
    with another_has_the_turn():
        task = asyncio.create_task(alone_on_loop(lambda: done.append("in its turn")))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(alone_on_loop(lambda: done.append("cancelled")), 0.05)
        assert done == []
    await task
    assert done == ["in its turn"]


async def test_a_proposal_can_time_out_while_another_thread_has_the_turn() -> None:
    policy = vllm_policy(BASE, None)
    view = await policy.open(questions(1)[0], "base")
    with another_has_the_turn(), pytest.raises(TimeoutError):
        await asyncio.wait_for(view.propose(2, step(32), (), [1, 2], 512), 0.1)
    assert len(await view.propose(2, step(32), (), [1, 2], 512)) == 2
    await view.close()


# A program of turns: a list is a turn, in which what stands there happens; None is a finalizer.
PROGRAMS = st.recursive(st.none(), lambda inner: st.lists(inner, max_size=4), max_leaves=20)


@given(PROGRAMS)
def test_a_finalizer_is_called_once_and_never_in_a_turn(program: object) -> None:
    called: list[bool] = []
    turns: list[object] = []
    due = 0

    def run(part: object) -> None:
        nonlocal due
        if isinstance(part, list):
            with alone():
                turns.append(part)
                for inner in part:
                    run(inner)
                turns.pop()
        else:
            due += 1
            in_some_turn(lambda: called.append(bool(turns)))
            assert bool(turns) or len(called) == due

    run(program)
    assert called == [False] * due


def test_a_finalizer_waits_for_no_other_thread() -> None:
    """That one does it instead, or it would never end if it waited for this one."""
    by: list[int] = []
    with another_has_the_turn():
        in_some_turn(lambda: by.append(threading.get_ident()))
        assert by == []
    assert len(by) == 1
    assert by != [threading.get_ident()]


def test_a_finalizer_that_fails_is_told_and_disturbs_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with alone():
        in_some_turn(lambda: 1 // 0)
        in_some_turn(lambda: print("the next"))
    told = capsys.readouterr()
    assert told.out == "the next\n"
    assert "ZeroDivisionError" in told.err


def test_a_fork_does_not_wait_for_the_thread_that_has_the_turn() -> None:
    with another_has_the_turn():
        child = os.fork()
        if not child:
            try:
                with alone():
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

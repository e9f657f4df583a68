"""Engines in several threads: vLLM keeps what is current in globals of the process."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.policies.vllm import alone as turns
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
    comes = threading.Event()

    def other() -> None:
        comes.set()
        alone(lambda: order.append("other"))

    def first() -> None:
        thread.start()
        comes.wait()
        time.sleep(0.1)
        order.append("first")

    thread = threading.Thread(target=other)
    alone(lambda: alone(first))
    thread.join()
    assert order == ["first", "other"]


@contextlib.contextmanager
def another_has_the_turn() -> Iterator[None]:
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=alone, args=[hold])
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


@pytest.mark.parametrize("seconds", [0.002, 0.02])
def test_loops_of_two_threads_get_the_same_number_of_turns(seconds: float) -> None:
    """Though each asks again at once."""
    both, turns, apart = threading.Barrier(2), [0, 0], [0]

    def act(number: int) -> None:
        time.sleep(seconds)
        turns[number] += 1
        apart[0] = max(apart[0], abs(turns[0] - turns[1]))

    async def ask(number: int) -> None:
        both.wait()
        for _ in range(40):
            await alone_on_loop(lambda: act(number))

    threads = [threading.Thread(target=asyncio.run, args=[ask(number)]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns == [40, 40]
    assert apart[0] < 20  # all but 1 where a machine is not busy


def test_who_does_not_come_is_passed_over() -> None:
    """A loop that was stopped while it waited; when it goes on, so does what waited."""
    done: list[str] = []
    loop = asyncio.new_event_loop()
    with another_has_the_turn():
        task = loop.create_task(alone_on_loop(lambda: done.append("late")))
        loop.run_until_complete(asyncio.sleep(0.01))
    for _ in range(3):
        alone(lambda: done.append("there"))
    loop.run_until_complete(task)
    loop.close()
    assert done == ["there", "there", "there", "late"]


def test_who_comes_late_each_time_gets_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that does something else, for longer than others wait at first."""
    monkeypatch.setattr(turns, "PATIENCE", 0.02)
    over = threading.Event()

    async def something_else() -> None:
        while not over.is_set():
            time.sleep(0.05)  # noqa: ASYNC251 - as an engine that computes
            await asyncio.sleep(0)

    async def busy() -> None:
        task = asyncio.create_task(something_else())
        for _ in range(5):
            await alone_on_loop(lambda: None)
        over.set()
        await task

    async def at_once() -> None:
        while not over.is_set():
            await alone_on_loop(lambda: time.sleep(0.01))

    threads = [threading.Thread(target=asyncio.run, args=[coro]) for coro in (busy(), at_once())]
    for thread in threads:
        thread.start()
    threads[0].join(60)
    came = over.is_set()
    over.set()
    for thread in threads:
        thread.join()
    assert came


@pytest.mark.parametrize("turns_of_loop", range(5))
async def test_what_is_cancelled_as_its_turn_comes_is_not_done(turns_of_loop: int) -> None:
    done: list[str] = []
    with another_has_the_turn():
        task = asyncio.create_task(alone_on_loop(lambda: done.append("done")))
        await asyncio.sleep(0.01)
    for _ in range(turns_of_loop):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert done == ([] if task.cancelled() else ["done"])


def test_an_interrupted_wait_leaves_the_line() -> None:
    """Ctrl-C comes whenever it may; the others go on."""
    code = """
import os, random, signal, threading, time
from kvrescue.policies.vllm.alone import alone
def hold():
    begun.set()
    time.sleep(0.01 * random.random())
    os.kill(os.getpid(), signal.SIGINT)
for _ in range(50):
    begun = threading.Event()
    thread = threading.Thread(target=alone, args=[hold])
    try:
        thread.start()
        begun.wait()
        alone(lambda: time.sleep(0.05))
    except KeyboardInterrupt as error:
        kept = error  # and the frames with it
    thread.join()
    other = threading.Thread(target=alone, args=[lambda: None], daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive()
print("done")
"""
    assert printed(code) == "done\n"


async def test_a_proposal_can_time_out_while_another_thread_has_the_turn() -> None:
    policy = vllm_policy(BASE, None)
    view = await policy.open(questions(1)[0], "base")
    with another_has_the_turn(), pytest.raises(TimeoutError):
        await asyncio.wait_for(view.propose(2, step(32), (), [1, 2], 512), 0.1)
    assert len(await view.propose(2, step(32), (), [1, 2], 512)) == 2
    await view.close()


# A program of turns: a list is a turn, a tuple a finalizer, and inside is what happens in it.
PROGRAMS = st.recursive(
    st.just(()),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=2).map(tuple),
    max_leaves=20,
)


def finalizers(part: Any) -> int:
    return isinstance(part, tuple) + sum(map(finalizers, part))


@given(PROGRAMS)
def test_a_finalizer_is_called_once_and_never_in_a_turn_or_in_another(program: Any) -> None:
    called: list[int] = []
    depth = 0

    def run(part: Any) -> None:
        if isinstance(part, list):
            alone(lambda: inside(part))
        else:
            in_some_turn(lambda: finalize(part))

    def finalize(part: Any) -> None:
        called.append(depth)
        inside(part)

    def inside(part: Any) -> None:
        nonlocal depth
        depth += 1
        for inner in part:
            run(inner)
        depth -= 1

    run(program)
    assert called == [0] * finalizers(program)


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
    alone(lambda: [in_some_turn(lambda: 1 // 0), in_some_turn(lambda: print("the next"))])
    told = capsys.readouterr()
    assert told.out == "the next\n"
    assert "ZeroDivisionError" in told.err


def test_a_fork_does_not_wait_for_the_thread_that_has_the_turn() -> None:
    with another_has_the_turn():
        child = os.fork()
        if not child:
            try:
                alone(lambda: os._exit(0))
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Interrupts:
    """Ctrl-C at the `moment`th of the moments at which Python delivers it: where a function begins,
    where a loop goes on, and at the end of a call of C."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        outer = sys.gettrace(), sys.getprofile()
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(outer[1])
            sys.settrace(outer[0])

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._pass(frame, name == "JUMP_BACKWARD")
        return self._trace if frame.f_code.co_filename == turns.__file__ else None

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        self._pass(frame, event in {"call", "c_return"})

    def _pass(self, frame: FrameType, is_moment: bool) -> None:
        if is_moment and frame.f_code.co_filename == turns.__file__:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


def take_a_turn() -> None:
    alone(lambda: None)


def take_a_turn_on_a_loop() -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(alone_on_loop(lambda: None))


@pytest.mark.parametrize("take", [take_a_turn, take_a_turn_on_a_loop])
@pytest.mark.parametrize("stopped", [0, 2])
def test_ctrl_c_at_any_moment_leaves_turns_to_the_others(
    take: Callable[[], None], stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone in the line, or behind loops that wait and are stopped."""
    monkeypatch.setattr(turns, "PATIENCE", 0.002)
    monkeypatch.setattr(turns, "_turns", turns._Turns())  # else a failure would stop the others
    for moment in itertools.count(1):
        with contextlib.ExitStack() as stack:
            loops = [asyncio.new_event_loop() for _ in range(stopped)]
            waiting = []
            with another_has_the_turn():
                for loop in loops:
                    stack.callback(loop.close)
                    waiting.append(loop.create_task(alone_on_loop(lambda: None)))
                    loop.run_until_complete(asyncio.sleep(0))
            interrupts = Interrupts(moment)
            with contextlib.suppress(KeyboardInterrupt), interrupts.coming():
                take()
            other = threading.Thread(target=take_a_turn, daemon=True)
            other.start()
            other.join(20)
            assert not other.is_alive(), f"at moment {moment}"
            for loop, task in zip(loops, waiting, strict=True):
                loop.run_until_complete(asyncio.wait_for(task, 20))
        if interrupts.left > 0:
            break
    assert moment > 10

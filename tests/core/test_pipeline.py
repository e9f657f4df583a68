"""Rescue from threads, coroutines and streams; what is interrupted closes its views first."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvrescue import Rescue
from kvrescue.background import BackgroundLoop
from kvrescue.errors import (
    ConfigError,
    InputError,
    KVRescueError,
    ModelLoadError,
    PluginError,
    PolicyError,
)
from kvrescue.events import Event, StepCommitted, TrajectoryFinished, TrajectoryStarted, from_dict
from kvrescue.questions import MAX_QUESTION_CHARACTERS, as_question
from kvrescue.rules import Limits
from kvrescue.selector import Proposer
from kvrescue.types import Question, Solution
from tests.core import components
from tests.core.components import FakeSpec, fake_plugins
from tests.core.fakes import FakePolicy, FakeScorer, Habits
from tests.core.test_config import example
from tests.core.test_plugins import Watcher
from tests.core.test_selector_failures import BoomError, fail_at

STEADY = Habits(words=("a\n\n", "b\n\n", "c d\n\n"), eos=0.0)
LIMITS = Limits(max_steps=5)


@pytest.fixture(autouse=True)
def _the_loop_ends_with_its_last_user() -> Iterator[None]:
    yield
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    assert "kvrescue" not in names


def build(policy: FakePolicy | None = None, **options: object) -> tuple[Rescue, FakePolicy]:
    policy = policy or FakePolicy(STEADY)
    rescue = Rescue(
        [Proposer(policy, 2), Proposer(FakePolicy(STEADY), 2, name="helper")],
        FakeScorer(),
        limits=LIMITS,
        plugins=fake_plugins(),
        **options,  # type: ignore[arg-type]
    )
    return rescue, policy


# -- the four ways of asking ------------------------------------------------------------------


def test_all_ways_of_asking_give_the_same_solution() -> None:
    async def ask(rescue: Rescue) -> list[Solution]:
        asolved = await rescue.asolve("How many?", 3)
        events = [event async for event in rescue.astream("How many?", 3)]
        assert isinstance(events[-1], TrajectoryFinished)
        return [asolved, events[-1].solution]

    rescue, policy = build()
    with rescue:
        solution = rescue.solve("How many?", 3)
        events = list(rescue.stream("How many?", 3))
        assert isinstance(events[0], TrajectoryStarted)
        assert isinstance(events[-1], TrajectoryFinished)
        [many] = rescue.solve_many(["How many?"], 3)
        assert [events[-1].solution, many, *asyncio.run(ask(rescue))] == [solution] * 4
    assert policy.log.balanced
    assert len(solution.steps) == 5


async def test_solve_inside_a_running_loop() -> None:
    """A notebook cell runs inside an event loop and may call the plain form."""
    rescue, _ = build()
    async with rescue:
        assert rescue.solve("How many?") == await rescue.asolve("How many?")


def test_seeds() -> None:
    rescue, policy = build(seed=7)
    with rescue:
        first, other = rescue.solve("How many?"), rescue.solve("How many?", 8)
        assert first == rescue.solve("How many?", 7)
    assert (first.seed, other.seed) == (7, 8)
    assert policy.log.proposals[0][1] != policy.log.proposals[5][1]


def test_solving_from_eight_threads_is_solving_one_by_one() -> None:
    questions = [f"question {number}" for number in range(40)]
    rescue, policy = build(FakePolicy(STEADY, delay=0.001))
    with rescue, ThreadPoolExecutor(8) as pool:
        together = list(pool.map(rescue.solve, questions))
        one_by_one = [rescue.solve(question) for question in questions]
    assert together == one_by_one
    assert policy.log.balanced


def test_many_questions_in_flight_but_never_more_than_allowed() -> None:
    questions = [Question(f"q {number}", str(number)) for number in range(30)]
    for own, wanted, most in ((4, None, 4), (4, 99, 4), (8, 3, 3)):
        rescue, policy = build(FakePolicy(STEADY, delay=0.001), concurrency=own)
        with rescue:
            solutions = list(rescue.solve_many(iter(questions), concurrency=wanted))
        assert {solution.question for solution in solutions} == set(questions)
        assert policy.most_in_flight == most


async def test_single_questions_wait_for_a_place_too() -> None:
    rescue, policy = build(FakePolicy(STEADY, delay=0.001), concurrency=2)
    async with rescue:
        await asyncio.gather(*(rescue.asolve(f"q {number}") for number in range(10)))
    assert policy.most_in_flight == 2


def test_solve_many_takes_questions_as_it_needs_them() -> None:
    taken: list[int] = []

    def endless() -> Iterator[str]:
        for number in range(10**9):
            taken.append(number)
            yield f"q {number}"

    rescue, policy = build(FakePolicy(STEADY, delay=0.001), concurrency=3)
    with rescue:
        solutions = rescue.solve_many(endless())
        for _ in range(5):
            next(solutions)
        solutions.close()  # type: ignore[attr-defined]
        assert len(taken) <= 8
        assert policy.log.balanced


def test_a_question_that_fails_does_not_end_the_others() -> None:
    questions = [f"question {number}" for number in range(12)]
    opened: list[str] = []

    def trouble(where: str) -> None:
        opened.append(where)
        if where == "open" and opened.count("open") in (3, 7):
            raise MemoryError("no room")

    rescue, policy = build(FakePolicy(STEADY, trouble=trouble), concurrency=4)
    with rescue:
        outcomes = dict(rescue.solve_each(questions))
        plain = {s.question: s for s in rescue.solve_many(questions)}
    assert set(outcomes) == set(plain)
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, KVRescueError)]
    assert [type(error) for error in failed] == [PolicyError, PolicyError]
    assert all("no room" in str(error) for error in failed)
    for question, outcome in outcomes.items():
        assert isinstance(outcome, KVRescueError) or outcome == plain[question]
    assert policy.log.balanced


def test_what_is_no_failure_of_a_question_ends_solve_each() -> None:
    rescue, policy = build(FakePolicy(STEADY, delay=0.001), concurrency=4)
    with rescue:
        outcomes = rescue.solve_each(["a", "b", "c", " ", "d"])
        with pytest.raises(InputError, match="empty"):
            list(outcomes)
    assert policy.log.balanced


# -- questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        (Question("  "), "empty"),
        ("x" * (MAX_QUESTION_CHARACTERS + 1), "has 100001 characters; the limit is 100000"),
        ("\ud800", "not valid Unicode"),
        (None, "a question is a text, not NoneType"),
    ],
)
def test_questions_that_cannot_be_asked(question: str, message: str) -> None:
    rescue, policy = build()
    with rescue:
        for ask in (rescue.solve, rescue.stream, lambda q: list(rescue.solve_many([q]))):
            with pytest.raises(InputError, match=message):
                ask(question)
    assert policy.log.opened == 0


def test_ids_depend_on_the_text_alone() -> None:
    assert as_question("How many?") == as_question("How many?")
    assert as_question("How many?").id != as_question("How much?").id
    assert as_question(Question("How many?", "mine")).id == "mine"
    assert as_question("x" * MAX_QUESTION_CHARACTERS).text


# -- failures, interruptions, closing ---------------------------------------------------------


def test_errors_reach_the_caller_of_every_form() -> None:
    async def ask(rescue: Rescue) -> None:
        with pytest.raises(PolicyError, match="it broke"):
            await rescue.asolve("q")
        with pytest.raises(PolicyError, match="it broke"):
            [event async for event in rescue.astream("q")]

    rescue, policy = build(FakePolicy(STEADY, trouble=fail_at("commit", BoomError("it broke"))))
    with rescue:
        for call in (
            lambda: rescue.solve("q"),
            lambda: list(rescue.stream("q")),
            lambda: list(rescue.solve_many(["q", "r", "s"])),
        ):
            with pytest.raises(PolicyError, match="it broke"):
                call()
        asyncio.run(ask(rescue))
    assert policy.log.balanced


def test_leaving_a_stream_early_cancels_the_trajectory() -> None:
    rescue, policy = build(FakePolicy(STEADY, delay=0.001))
    with rescue:
        for event in rescue.stream("q"):
            if isinstance(event, StepCommitted):
                break
        del event
        gc.collect()
        assert policy.log.opened == 1
        assert policy.log.balanced


async def test_leaving_an_async_stream_early_cancels_the_trajectory() -> None:
    rescue, policy = build(FakePolicy(STEADY, delay=0.001))
    async with rescue:
        events = rescue.astream("q")
        async for event in events:
            if isinstance(event, StepCommitted):
                break
        await events.aclose()
        assert policy.log.opened == 1
        assert policy.log.balanced


async def test_cancelling_asolve_waits_until_the_views_are_closed() -> None:
    rescue, policy = build(FakePolicy(STEADY, delay=0.01))
    async with rescue:
        task = asyncio.create_task(rescue.asolve("q"))
        await asyncio.sleep(0.025)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert policy.log.opened == 1
        assert policy.log.balanced


def test_ctrl_c_closes_the_views_and_keeps_the_interrupt() -> None:
    started = threading.Event()

    def watch(event: Event) -> None:
        if isinstance(event, StepCommitted):
            started.set()

    def interrupt() -> None:
        started.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    asks: list[Callable[[Rescue], object]] = [
        lambda rescue: rescue.solve("q"),
        lambda rescue: list(rescue.stream("q")),
        lambda rescue: list(rescue.solve_many(["q", "r"])),
    ]
    for ask in asks:
        started.clear()
        rescue, policy = build(FakePolicy(STEADY, delay=0.02), observers=[watch])
        thread = threading.Thread(target=interrupt)
        with rescue:
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                ask(rescue)
            assert policy.log.opened >= 1
            assert policy.log.balanced
        thread.join()


@pytest.mark.parametrize("alone", [True, False])
def test_closing_cancels_what_is_in_flight(alone: bool) -> None:
    rescue, policy = build(FakePolicy(STEADY, delay=0.05))
    other, _ = build()
    if alone:
        other.close()
    failures: list[Exception] = []

    def ask() -> None:
        try:
            rescue.solve("q")
        except KVRescueError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not policy.log.opened:
        time.sleep(0.001)
    rescue.close()
    assert policy.log.balanced
    thread.join(5)
    assert not thread.is_alive()
    assert "closed while this was in flight" in str(failures[0])
    if not alone:
        assert other.solve("q").steps
        other.close()


def test_closed_is_closed() -> None:
    rescue, policy = build()
    rescue.close()
    rescue.close()
    with pytest.raises(KVRescueError, match="is closed"):
        rescue.solve("q")
    # What was passed in stays the caller's.
    assert not policy.finished


def test_a_rescue_that_nobody_closed_gives_its_loop_back() -> None:
    rescue, _ = build()
    rescue.solve("q")
    del rescue  # the fixture checks for the thread


def test_two_rescues_may_share_a_policy() -> None:
    policy = FakePolicy(STEADY)
    scorer = FakeScorer()
    known = fake_plugins()
    with Rescue([Proposer(policy)], scorer, limits=LIMITS, plugins=known) as one:
        both = [Proposer(policy), Proposer(policy, name="again")]
        with Rescue(both, scorer, limits=LIMITS, plugins=known) as two:
            two.solve("q")
        one.solve("q")
        assert BackgroundLoop._leases == 1
    assert policy.log.balanced


def test_waiting_for_oneself_is_refused() -> None:
    holder: list[Rescue] = []

    def watch(event: Event) -> None:
        holder[0].solve("another")

    rescue, _ = build(observers=[watch])
    holder.append(rescue)
    with rescue, pytest.raises(KVRescueError, match="would wait for itself"):
        rescue.solve("q")


def test_plugins_observe() -> None:
    known = fake_plugins()
    watcher = Watcher()
    known.register(watcher)

    class Bad(Watcher):
        def kvrescue_step_committed(self, event: StepCommitted) -> None:
            raise BoomError("it broke")

    with Rescue([Proposer(FakePolicy(STEADY))], FakeScorer(), limits=LIMITS, plugins=known) as one:
        solution = one.solve("q")
    assert watcher.seen[-1] == TrajectoryFinished(solution)
    assert len(watcher.seen) == 1 + len(solution.steps)
    known.register(Bad(), name="bad")
    with (
        Rescue([Proposer(FakePolicy(STEADY))], FakeScorer(), plugins=known) as two,
        pytest.raises(PluginError, match="plugin 'bad' failed in kvrescue_step_committed"),
    ):
        two.solve("q")


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True])
def test_concurrency_is_checked(concurrency: object) -> None:
    with pytest.raises(ConfigError, match="concurrency = "):
        build(concurrency=concurrency)


# -- from a configuration ---------------------------------------------------------------------


def test_from_config_builds_owns_and_closes() -> None:
    with Rescue.from_config(example(), ["seed=4", "concurrency=2"], plugins=fake_plugins()) as one:
        assert one.config is not None
        assert one.config.seed == 4
        assert one.concurrency == 2
        policies = [proposer.policy for proposer in one.selector.proposers]
        solution = one.solve("q")
        assert solution.seed == 4
        assert set(solution.tokens) == {"base", "helper"}
        scorer = one.selector.scorer
    for policy in policies:
        assert isinstance(policy, FakePolicy)
        assert policy.finished
        assert policy.log.balanced
    assert isinstance(scorer, FakeScorer)
    assert scorer.finished


def test_equal_policies_are_built_once() -> None:
    same = "proposers.helper.policy={kind: fake, model: m, evictor: {kind: oldest, budget: 4}}"
    for overrides, count in (([], 2), ([same], 1)):
        with Rescue.from_config(example(), overrides, plugins=fake_plugins()) as rescue:
            assert len({id(p.policy) for p in rescue.selector.proposers}) == count


def test_a_build_that_fails_closes_what_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[FakePolicy] = []

    def build(self: FakeSpec) -> FakePolicy:
        if built:
            raise ModelLoadError("corrupted")
        built.append(FakePolicy())
        return built[0]

    monkeypatch.setattr(components.FakeSpec, "build", build)
    with pytest.raises(ModelLoadError, match="corrupted"):
        Rescue.from_config(example(), plugins=fake_plugins())
    assert built[0].finished


# -- whole processes --------------------------------------------------------------------------

SCRIPT = """
import sys
from kvrescue import Proposer, Rescue, TraceWriter
from kvrescue.rules import Limits
from tests.core.fakes import FakePolicy, FakeScorer, Habits

policy = FakePolicy(Habits(words=("a\\n\\n",), eos=0.0), delay=0.01)
trace = TraceWriter(sys.argv[1])
rescue = Rescue([Proposer(policy)], FakeScorer(), observers=[trace])
print("ready", flush=True)
"""


def start(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_ctrl_c_ends_a_process_and_keeps_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    ending = """
try:
    rescue.solve("q")
except KeyboardInterrupt:
    print("closed" if policy.log.balanced else "leaked", flush=True)
    sys.exit(130)
"""
    with start(SCRIPT + ending, path) as process:
        while not path.exists() or path.read_text().count("step_committed") < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out.split(), err) == (130, ["ready", "closed"], "")
    events = [from_dict(json.loads(line)) for line in path.read_text().splitlines()]
    assert isinstance(events[0], TrajectoryStarted)
    assert sum(isinstance(event, StepCommitted) for event in events) >= 2


@pytest.mark.parametrize(
    "ending", ["", "next(rescue.stream('q'))", "s = rescue.stream('q'); next(s)"]
)
def test_nothing_hangs_when_the_interpreter_exits(tmp_path: Path, ending: str) -> None:
    with start(SCRIPT + ending, tmp_path / "trace.jsonl") as process:
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "ready\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_or_starts_its_own_loop(tmp_path: Path) -> None:
    ending = """
import os
from kvrescue import KVRescueError
rescue.solve("q")
child = os.fork()
if child == 0:
    try:
        rescue.solve("q")
    except KVRescueError as error:
        print(error, flush=True)
    with Rescue([Proposer(policy)], FakeScorer()) as own:
        print(own.solve("q").stop, flush=True)
    os._exit(0)
os.waitpid(child, 0)
rescue.close()
"""
    script = SCRIPT.replace(
        "FakeScorer(), observers", "FakeScorer(), limits=Limits(max_steps=2), observers"
    )
    with start(
        script + ending.replace("FakeScorer())", "FakeScorer(), limits=Limits(max_steps=2))"),
        tmp_path / "trace.jsonl",
    ) as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == [
        "ready",
        "the background loop has ended: make the Rescue in this process",
        "steps",
    ]


def test_importing_the_package_is_light() -> None:
    script = """
import sys
import kvrescue
from kvrescue import *
from kvrescue.plugins import default
default().describe()
kvrescue.load_config
heavy = {"torch", "transformers", "numpy", "vllm", "scipy"} & set(sys.modules)
assert not heavy, heavy
assert set(kvrescue.__all__) <= set(dir(kvrescue))
missing = [name for name in kvrescue.__all__ if not hasattr(kvrescue, name)]
assert not missing, missing
try:
    kvrescue.nothing
except AttributeError as error:
    assert "nothing" in str(error)
"""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr

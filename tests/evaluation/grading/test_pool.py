"""Worker processes: whatever an answer does to them, the run goes on, and none is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvrescue.errors import ConfigError, DependencyError, KVRescueError
from kvrescue.evaluation.grading import (
    Disagreements,
    Grade,
    Grader,
    GradingRule,
    RuleName,
    TroubleKind,
    pool,
    process,
)
from tests.evaluation.grading.cases import PAIRS
from tests.processes import alive, wait_for_end

ROOT = Path(__file__).parents[3]
PATIENCE = 120.0


@pytest.fixture
def wild(monkeypatch: pytest.MonkeyPatch) -> Iterator[Grader]:
    """A grader of rules that misbehave on demand."""
    monkeypatch.setattr(
        pool,
        "_RULES",
        {
            RuleName.PAPER: "tests.evaluation.grading.rules:same",
            RuleName.MATH_VERIFY: "tests.evaluation.grading.rules:other",
        },
    )
    with Grader(workers=1, timeout=0.3, memory_mb=512) as grader:
        yield grader


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(workers=1, timeout=2.0) as grader:
        yield grader


def boxed(answer: str) -> str:
    return rf"so \boxed{{{answer}}}."


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("hang", TroubleKind.TIMEOUT),
        ("die", TroubleKind.DIED),
        ("raise", TroubleKind.ERROR),
        ("deep", TroubleKind.ERROR),
        ("grow", TroubleKind.MEMORY),
    ],
)
def test_one_bad_answer_is_wrong_and_the_next_is_graded(
    wild: Grader, answer: str, kind: TroubleKind
) -> None:
    assert wild.grade(boxed("x"), "x").correct
    bad = wild.grade(boxed(answer), answer)
    assert [(t.rule, t.kind) for t in bad.troubles] == [(RuleName.PAPER, kind)]
    assert (bad.paper, bad.math_verify, bad.correct) == (False, True, False)
    assert bad.timed_out is (kind is TroubleKind.TIMEOUT)
    good = wild.grade(boxed("X"), "x")
    assert (good.paper, good.math_verify, good.troubles) == (False, True, ())


def test_a_rule_that_waits_for_ever_is_ended_by_the_clock(
    monkeypatch: pytest.MonkeyPatch, wild: Grader
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.0)
    bad = wild.grade(boxed("sleep"), "sleep")
    assert [(t.rule, t.kind) for t in bad.troubles] == [(RuleName.PAPER, TroubleKind.TIMEOUT)]
    assert "by the clock" in bad.troubles[0].detail


def test_what_rules_print_disturbs_nothing(wild: Grader, capfd: pytest.CaptureFixture[str]) -> None:
    assert wild.grade(boxed("talk"), "talk").correct
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_somebody_kills_is_replaced(wild: Grader) -> None:
    assert wild.grade(boxed("x"), "x").correct
    (pid,) = wild.worker_pids
    os.kill(pid, signal.SIGKILL)
    again = wild.grade(boxed("x"), "x")
    assert (again.correct, again.troubles) == (True, ())
    assert wild.worker_pids != (pid,)


def test_nothing_is_left_after_closing(wild: Grader) -> None:
    wild.grade(boxed("x"), "x")
    pids = wild.worker_pids
    assert len(pids) == 1
    assert alive(pids[0])
    waiting = [wild.submit(boxed("sleep"), "x") for _ in range(3)]
    wild.close()
    wild.close()
    wait_for_end(pids, PATIENCE)
    for future in waiting:
        with pytest.raises(KVRescueError, match="closed"):
            future.result(PATIENCE)
    with pytest.raises(KVRescueError, match="closed"):
        wild.grade(boxed("x"), "x")
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("kvrescue-grading") for name in names)


def test_a_grader_that_is_dropped_takes_its_workers_along(
    monkeypatch: pytest.MonkeyPatch, wild: Grader
) -> None:
    dropped = Grader(workers=1)
    dropped.grade(boxed("x"), "x")
    pids = dropped.worker_pids
    del dropped
    gc.collect()
    wait_for_end(pids, PATIENCE)


def test_many_threads_and_loops(wild: Grader) -> None:
    def sync(number: int) -> bool:
        return wild.grade(boxed(str(number)), number).correct

    async def several() -> list[Grade]:
        return await asyncio.gather(*(wild.grade_async(boxed(str(n)), n % 3) for n in range(9)))

    with ThreadPoolExecutor(8) as threads:
        loops = [threads.submit(asyncio.run, several()) for _ in range(2)]
        assert all(threads.map(sync, range(40)))
        for loop in loops:
            assert [grade.correct for grade in loop.result()] == [n < 3 for n in range(9)]


async def test_a_cancelled_grade_disturbs_no_other(wild: Grader) -> None:
    stuck = asyncio.ensure_future(wild.grade_async(boxed("hang"), "x"))
    waiting = asyncio.ensure_future(wild.grade_async(boxed("x"), "y"))
    await asyncio.sleep(0)
    stuck.cancel()
    waiting.cancel()
    assert (await wild.grade_async(boxed("x"), "x")).correct
    assert stuck.cancelled()
    assert waiting.cancelled()


def test_order_of_many(wild: Grader) -> None:
    grades = wild.grade_many([(boxed(str(n)), n - n % 2) for n in range(20)])
    assert [grade.answer for grade in grades] == [str(n) for n in range(20)]
    assert [grade.correct for grade in grades] == [n % 2 == 0 for n in range(20)]


@pytest.mark.parametrize("text", ["no box", r"\boxed{4} and \boxed{5", r"\boxed{}"])
def test_no_answer_is_wrong_and_needs_no_worker(wild: Grader, text: str) -> None:
    grade = wild.grade(text, "4")
    assert (grade.answer, grade.paper, grade.math_verify) == (None, False, False)
    assert wild.worker_pids == ()


def test_surrogates_and_control_characters_reach_the_worker(wild: Grader) -> None:
    assert wild.grade(boxed("\ud800\x00\n\u2028é"), "\ud800\x00\n\u2028é").correct


# -- the real rules ---------------------------------------------------------------------------


def test_both_rules_and_their_disagreements(grader: Grader) -> None:
    grades = grader.grade_many([(pair.response, pair.gold) for pair in PAIRS])
    assert not any(grade.troubles for grade in grades)
    found = Disagreements.of([*grades, grader.grade(boxed("4"), 4, "exact")])
    assert found.total == len(PAIRS)
    assert found.count == sum(grade.disagree for grade in grades) == len(found.pairs)
    assert (r"0.33333", r"\frac{1}{3}") in found.pairs
    assert all(g.paper and not g.math_verify for g in found.paper_only)
    assert all(g.math_verify and not g.paper for g in found.math_verify_only)
    assert found.both_right == sum(bool(g.paper and g.math_verify) for g in grades)
    assert found.troubled == ()


PATHOLOGICAL = {
    "tower of powers": "9^{9^{9^9}}",
    "factorial": "1000000000!",
    "nested braces": "{" * 100_000 + "1" + "}" * 100_000,
    "million digits": "9" * 1_000_000,
    "million characters": "x" * 1_000_000,
    "long list": "1," * 200_000 + "1",
}


@pytest.fixture(scope="module")
def hasty() -> Iterator[Grader]:
    with Grader(workers=1, timeout=0.5) as grader:
        yield grader


@pytest.mark.slow
@pytest.mark.parametrize("answer", PATHOLOGICAL.values(), ids=PATHOLOGICAL.keys())
def test_pathological_answers_end(hasty: Grader, answer: str) -> None:
    grade = hasty.submit(boxed(answer), "x^2+7").result(PATIENCE)
    assert not grade.paper
    assert not grade.math_verify
    after = hasty.grade(boxed(r"\frac12"), "0.5")
    assert (after.paper, after.math_verify, after.troubles) == (True, True, ())


# -- programs ---------------------------------------------------------------------------------

PROGRAM = """
import sys
print("main runs", flush=True)  # workers must not run this again
from kvrescue.evaluation.grading import Grader, RuleName, pool
for rule in RuleName:
    pool._RULES[rule] = "tests.evaluation.grading.rules:same"
grader = Grader(workers=2, timeout={timeout}, memory_mb=512)
assert all(grade.correct for grade in grader.grade_many([(r"\\\\boxed{{x}}", "x")] * 20))
print(*grader.worker_pids, flush=True)
{rest}
"""


class Program:
    """A program that grades, without `if __name__ == "__main__"`."""

    def __init__(self, folder: Path, rest: str, timeout: float = 2.0) -> None:
        file = folder / "program.py"
        file.write_text(PROGRAM.format(rest=rest, timeout=timeout))
        self.process = subprocess.Popen(
            [sys.executable, str(file)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # what a buffered `readline` reads ahead is lost to `communicate`
            start_new_session=True,
        )
        assert self.line() == "main runs\n"
        self.pids = [int(pid) for pid in self.line().split()]
        assert self.pids

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode()

    def end(self) -> tuple[int, str, str]:
        try:
            output, errors = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, output.decode(), errors.decode()


HANG = 'print("hanging", flush=True); grader.grade(r"\\boxed{hang}", "x")'
SLEEP = "import time; time.sleep(1000)"


@pytest.mark.parametrize("rest", [HANG, SLEEP], ids=["stuck", "idle"])
def test_workers_end_when_the_program_is_killed(tmp_path: Path, rest: str) -> None:
    program = Program(tmp_path, rest)
    if rest is HANG:
        assert program.line() == "hanging\n"
    program.process.kill()
    program.end()
    wait_for_end(program.pids, PATIENCE)


def test_ctrl_c_ends_program_and_workers(tmp_path: Path) -> None:
    program = Program(tmp_path, f"with grader: {HANG}", timeout=1000.0)
    assert program.line() == "hanging\n"
    os.killpg(program.process.pid, signal.SIGINT)
    code, _, errors = program.end()
    assert code == -signal.SIGINT
    assert errors.count("KeyboardInterrupt") == 1
    wait_for_end(program.pids, PATIENCE)


def test_a_program_that_does_not_close_ends(tmp_path: Path) -> None:
    program = Program(tmp_path, 'grader.submit(r"\\boxed{sleep}", "x")', timeout=1000.0)
    assert program.end() == (0, "", "")
    wait_for_end(program.pids, PATIENCE)


def test_a_fork_cannot_use_its_parents_grader(tmp_path: Path) -> None:
    rest = """
import os
if os.fork() == 0:
    try:
        grader.grade(r"\\boxed{x}", "x")
    except Exception as error:
        print(error, flush=True)
    sys.exit()
_, status = os.wait()
print(status, grader.grade(r"\\boxed{x}", "x").correct)
"""
    program = Program(tmp_path, rest)
    assert program.end() == (
        0,
        "a grader does not survive a fork: make one in this process\n0 True\n",
        "",
    )


def test_workers_import_no_framework() -> None:
    code = """
import sys
import kvrescue.evaluation.grading.worker
for name in ("paper_rule", "math_verify_rule"):
    __import__(f"kvrescue.evaluation.grading.{name}")
heavy = {"torch", "transformers", "numpy", "scipy", "typer", "rich"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": True}, "workers"),
        ({"workers": 1.5}, "workers"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": 1e308}, "timeout"),
        ({"timeout": 10**400}, "timeout"),
        ({"timeout": 1e-300}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"memory_mb": 1}, "memory_mb"),
        ({"memory_mb": 10**30}, "memory_mb"),
        ({"workers": 10**9}, "workers"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field} = .*: expected "):
        Grader(**options)  # type: ignore[arg-type]


def test_unknown_rule(wild: Grader) -> None:
    with pytest.raises(ConfigError, match="rule = 'maths': expected 'exact' or 'math'"):
        wild.grade(boxed("4"), "4", "maths")


def test_without_math_verify_only_whole_numbers_are_graded(
    monkeypatch: pytest.MonkeyPatch, wild: Grader
) -> None:
    monkeypatch.setattr(pool.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"kvrescue\[eval\]"):
        wild.grade(boxed("4"), "4")
    assert wild.grade(boxed("4"), "4", GradingRule.EXACT).correct


def test_rules_that_cannot_be_imported_are_an_error(
    monkeypatch: pytest.MonkeyPatch, wild: Grader
) -> None:
    monkeypatch.setitem(pool._RULES, RuleName.PAPER, "no_such_module:rule")
    with pytest.raises(KVRescueError, match="no_such_module"):
        wild.grade(boxed("4"), "4")

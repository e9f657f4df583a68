"""Engines begin and end in a process: whatever happens to one, the others and the program stay."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.processes import alive, wait_for_end
from tests.vllm.test_cli import ROOT, USERS
from tests.vllm.test_threads import printed

PROGRAM = """
import asyncio, gc, multiprocessing, os, signal, tempfile, threading, time
import torch
from kvrescue.errors import ConfigError
from kvrescue.evictors import RKV
from kvrescue.policies.vllm.policy import VLLMPolicy
from kvrescue.policies.vllm.worker import CPUWorker
from tests.policies.parts import BASE, questions, step
from tests.processes import children, named, shared

def policy(ranks=1, memory=16 << 20):
    evictor = RKV(budget=32, window=16, observation=8, interval=1)
    options = {"tensor_parallel_size": ranks}
    return VLLMPolicy(BASE, evictor=evictor, kv_cache_bytes=memory, options=options)

def proposed(policy):
    async def run():
        view = await policy.open(questions(1)[0], "base")
        found = await view.propose(2, step(24), (), [1, 2], 512)
        await view.close()
        return [candidate.token_ids for candidate in found]
    return asyncio.run(run())

def close(policy):
    asyncio.run(policy.aclose())

def left():
    ranks = sum(child.name.startswith("VllmWorker") for child in multiprocessing.active_children())
    # torch keeps something of what it compiles.
    files = [n for n in os.listdir(tempfile.gettempdir()) if not n.startswith("torchinductor_")]
    return ranks, files
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files; of a path so short that it may name sockets."""
    path = Path(mkdtemp())
    yield path
    shutil.rmtree(path)


FAILS = """
torch.set_num_threads(3)
used, over = set(), threading.Event()
def watch():
    while not over.wait(0.05):
        for number in (os.getpid(), *children(os.getpid())):
            used.update(shared(number))
watcher = threading.Thread(target=watch)
watcher.start()
for count in (2, 1):
    for memory in (1000, 1 << 50):
        try:
            policy(count, memory)
        except ConfigError as error:
            print(f"kv_cache_bytes = {memory}" in str(error), *left(), torch.get_num_threads())
told = []
for count in (2, 1, 2):
    opened = policy(count)
    told.append(proposed(opened))
    close(opened)
    print(*left(), torch.get_num_threads())
print(told[0] == told[1] == told[2])
over.set()
watcher.join()
del opened
gc.collect()
print(len(used) > 0, named(used))
"""


def test_engines_that_fail_to_start_or_follow_each_other_leave_nothing(folder: Path) -> None:
    """Neither ranks, nor what they share, nor their number of threads; the next one computes."""
    output = printed(PROGRAM + FAILS, TMPDIR=str(folder), VLLM_LOGGING_STREAM="ext://sys.stderr")
    assert output.splitlines() == ["True 0 [] 3"] * 4 + ["0 [] 3"] * 3 + ["True", "True []"]


COLLECTS = """
first = policy()
expected = proposed(first)
first.cycle = first
load = CPUWorker.load_model
def collects(self, *args, **kwargs):
    gc.collect()
    return load(self, *args, **kwargs)
CPUWorker.load_model = collects
gc.disable()
del first
second = policy()
print(proposed(second) == expected)
"""


def test_a_policy_that_is_collected_while_another_starts_takes_nothing_with_it() -> None:
    assert printed(PROGRAM + COLLECTS) == "True\n"


DROPS = """
import weakref
kept = policy()
expected = proposed(kept)
dropped = policy({ranks})
proposed(dropped)
driver = weakref.ref(dropped.engine.driver)
del dropped
gc.collect()
print(driver() is None, left()[0], proposed(kept) == expected)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_policy_that_is_dropped_ends(ranks: int) -> None:
    """Though vLLM takes all that lives when an engine starts from the collection of garbage."""
    assert printed(PROGRAM + DROPS.format(ranks=ranks)) == "True 0 True\n"


FORKS = """
opened = policy({ranks})
expected = proposed(opened)
child = os.fork()
if not child:
    close(opened)
    del opened
    gc.collect()
    {end}(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(proposed(opened) == expected)
"""


# As multiprocessing's forks end: torch does not survive an orderly end of a fork, if it is in it.
@pytest.mark.parametrize(
    ("ranks", "end"), [(1, "os._exit"), (2, "os._exit"), (2, "raise SystemExit")]
)
def test_a_fork_that_closes_it_leaves_the_engine_to_its_parent(ranks: int, end: str) -> None:
    assert printed(PROGRAM + FORKS.format(ranks=ranks, end=end)) == "True\n"


FREEZES = """
import weakref
mine = []
gc.freeze()
frozen = gc.get_freeze_count()
def kept():
    # Some of what was frozen dies.
    return not any(o is mine for o in gc.get_objects()) and gc.get_freeze_count() <= frozen
opened = policy()
print(kept())
proposed(opened)
driver = weakref.ref(opened.engine.driver)
del opened
gc.collect()
print(driver() is None, kept())
"""


def test_what_the_program_has_frozen_stays_so_and_no_more() -> None:
    assert printed(PROGRAM + FREEZES) == "True\nTrue True\n"


GROUPS = """
import torch.distributed as dist
own = f"file://{{tempfile.gettempdir()}}/own"
dist.init_process_group("gloo", init_method=own, rank=0, world_size=1)
for ranks in ({ranks}):
    opened = policy(ranks)
    proposed(opened)
    close(opened)
    print(dist.is_initialized())
"""


def test_a_group_of_the_program_stays(folder: Path) -> None:
    """Whether ranks are in this process or others; engines can follow."""
    code = PROGRAM + GROUPS.format(ranks="1, 2, 1")
    assert printed(code, TMPDIR=str(folder)) == "True\n" * 3


INTERRUPTED = """
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.llm_engine import LLMEngine
ranks = {ranks}
torch.set_num_threads(3)
other = policy()
expected = proposed(other)
files = left()[1]
for owner, name in [(EngineCore, "_initialize_kv_caches"), (LLMEngine, "reset_mm_cache")]:
    stock = getattr(owner, name)
    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return stock(*args, **kwargs)
    setattr(owner, name, interrupted)
    try:
        policy(ranks)
    except KeyboardInterrupt:
        setattr(owner, name, stock)
    gc.collect()
    print(left() == (0, files), torch.get_num_threads(), proposed(other) == expected)
print(proposed(policy(ranks)) == expected)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_start_that_is_interrupted_leaves_the_others(ranks: int, folder: Path) -> None:
    """Before the engine's core is there, and after."""
    code = PROGRAM + INTERRUPTED.format(ranks=ranks)
    said = printed(code, TMPDIR=str(folder), VLLM_LOGGING_STREAM="ext://sys.stderr")
    assert said == "True 3 True\n" * 2 + "True\n"


@contextlib.contextmanager
def killed(code: str, folder: Path) -> Iterator[list[str]]:
    """A program that kills itself: what it printed. It leaves its sockets in the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code],
        cwd=ROOT,
        env=USERS | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()


SPINS = """
opened = policy(2)
proposed(opened)
ranks = [child.pid for child in multiprocessing.active_children()]
os.kill(ranks[1], signal.SIGSTOP)
threading.Thread(target=proposed, args=[opened], daemon=True).start()
time.sleep(5)
print(*ranks, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_rank_that_waits_for_another_in_a_step_ends_with_its_parent(folder: Path) -> None:
    with killed(SPINS, folder) as (waits, stopped):
        try:
            wait_for_end([waits], 60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(waits), signal.SIGKILL)
            os.kill(int(stopped), signal.SIGCONT)
        wait_for_end([stopped], 60)


ORPHANS = """
opened = policy(2)
ranks = [child.pid for child in multiprocessing.active_children()]
if not (fork := os.fork()):
    time.sleep(3600)
print(fork, *ranks, flush=True)
os.kill(os.getpid(), 9)
"""


def test_ranks_end_with_their_parent_though_a_fork_of_it_goes_on(folder: Path) -> None:
    with killed(ORPHANS, folder) as (fork, *ranks):
        try:
            assert len(ranks) == 2
            wait_for_end(ranks)
            assert alive(fork)
        finally:
            os.kill(int(fork), signal.SIGKILL)

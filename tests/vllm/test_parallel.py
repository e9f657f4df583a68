"""Tensor parallelism: two CPU workers hold one KV head each, and nothing else changes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from kvrescue.errors import ConfigError, PolicyError
from kvrescue.evictors import RKV, SnapKV
from kvrescue.evictors.base import Evictor
from kvrescue.policies.vllm.policy import VLLMPolicy
from tests.cli.test_interrupts import CODES, SAID
from tests.policies.parts import BASE, idle, questions, step
from tests.processes import children, wait_for_end
from tests.vllm.parity import compare
from tests.vllm.parts import vllm_policy
from tests.vllm.test_cli import QUESTION, SECONDS, start

RANKS = 2


def parallel(evictor: Evictor, ranks: int = RANKS) -> VLLMPolicy:
    options = {"tensor_parallel_size": ranks}
    return VLLMPolicy(BASE, evictor=evictor, kv_cache_bytes=16 << 20, options=options)


def workers(policy: VLLMPolicy) -> list[Any]:
    return [w.proc for w in policy.engine.driver.llm.model_executor.workers]


async def test_two_ranks_give_what_one_gives() -> None:
    """Tokens, entropies, lengths and evictions, over own and foreign steps; no process stays."""
    evictor = RKV(budget=32, window=16, observation=8, interval=1)
    policy = parallel(evictor)
    processes = workers(policy)
    assert len(processes) == RANKS
    await compare(policy, vllm_policy(BASE, evictor), questions(3), 24)
    assert idle(policy)
    await policy.aclose()
    for process in processes:
        process.join(timeout=30)
    assert not any(process.is_alive() for process in processes)


async def test_a_worker_that_dies_is_an_error_and_no_hang() -> None:
    """In the middle of a proposal; before that, the other evictor and interval."""
    evictor = SnapKV(budget=64, window=32, observation=8, interval=16)
    policy = parallel(evictor)
    await compare(policy, vllm_policy(BASE, evictor), questions(2), 24)
    view = await policy.open(questions(1)[0], "base")
    task = asyncio.create_task(view.propose(2, step(300), (), [1, 2], 512))
    for _ in range(8):
        await asyncio.sleep(0)
    os.kill(workers(policy)[1].pid, signal.SIGKILL)
    with pytest.raises(PolicyError, match="vLLM"):
        await asyncio.wait_for(task, 60)
    with pytest.raises(PolicyError, match="vLLM"):
        await policy.open(questions(1)[0], "base")
    await view.close()
    await policy.aclose()


def test_more_ranks_than_kv_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size = 4 is not supported"):
        parallel(RKV(budget=32, window=16), ranks=4)


def shared(groups: set[str]) -> list[str]:
    """Memory that groups of ranks share."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(tuple(groups))]


@pytest.mark.parametrize(
    ("moment", "sent"), [("ranks start", signal.SIGINT), ("ranks are warm", signal.SIGHUP)]
)
def test_a_terminal_that_interrupts_ends_the_ranks_in_order(
    moment: str, sent: signal.Signals
) -> None:
    """It tells every process of its group; nobody complains, and nothing stays."""
    options = "proposers.base.policy.options={tensor_parallel_size: 2}"
    arguments = ["solve", QUESTION, "--engine", "vllm", "--set", options]
    folder = Path(mkdtemp())  # where they meet; of a path so short that it may name sockets
    process = start(*arguments, start_new_session=True, TMPDIR=str(folder))
    groups: set[str] = set()
    deadline = time.monotonic() + SECONDS
    try:
        while len(ranks := children(process.pid)) < 1 + RANKS or not (
            moment == "ranks start" or shared(groups)
        ):  # one of the children is multiprocessing's resource tracker
            groups |= {file.name for file in folder.glob("vllm_dist_*")}
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, sent)
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    said = [line for line in errors.splitlines() if not line.startswith("Triton is installed")]
    assert (process.returncode, output) == (CODES[sent], "")
    assert said == SAID[sent].splitlines()
    wait_for_end(ranks)
    assert bool(groups) == (moment == "ranks are warm")
    assert not list(folder.glob("vllm_dist_*"))
    assert not shared(groups)
    shutil.rmtree(folder)

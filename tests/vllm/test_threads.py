"""Threads of arithmetic: vLLM counts them in the thread that asks, torch in the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.vllm.test_cli import ROOT, USERS

SOLVES = """
import sys, threading
import torch
from kvrescue import Rescue
from kvrescue.evaluation.bill import bill_at
from tests.vllm.test_rescue import ON_VLLM

def solve():
    with Rescue.from_config("tiny", [*ON_VLLM, "limits.max_steps=2", *sys.argv[2:]]) as rescue:
        print(len(rescue.solve(bill_at("test", 0, 1).question).steps))

torch.set_num_threads(int(sys.argv[1]))
thread = threading.Thread(target=solve)
thread.start()
thread.join()
"""


def printed(code: str, *arguments: str, **variables: str) -> str:
    """By a program that somebody with a plain environment runs."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=USERS | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", [1, 3])
def test_torch_is_told_a_number_that_no_thread_of_vllm_has_heard_of(threads: int) -> None:
    """Neither the thread that builds the engines nor the one that steps them told torch."""
    prm = ["scorer.kind=vllm_prm", "scorer.kv_cache_bytes=33554432"]
    assert printed(SOLVES, str(threads), *prm) == "2\n"

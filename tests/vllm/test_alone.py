"""Engines in several threads: vLLM keeps what is current in globals of the process."""

from __future__ import annotations

import threading
import time

from kvrescue.policies.vllm.alone import alone
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

"""The policy contract on vLLM: the same tests as for the torch engine."""

from __future__ import annotations

from typing import Any

import pytest

from kvrescue.evictors import RKV, SnapKV
from kvrescue.evictors.base import Evictor
from kvrescue.policies.vllm.policy import VLLMPolicy
from kvrescue.testing import check_policy
from tests.policies.contract import *  # noqa: F403
from tests.policies.parts import BASE, HELPER
from tests.vllm.parts import vllm_policy

PARTS: dict[str, tuple[str, Evictor | None]] = {
    "every token": (BASE, RKV(budget=32, window=16, observation=8, interval=1)),
    "every fourth": (BASE, SnapKV(budget=32, window=16, observation=8, interval=4)),
    "full": (HELPER, None),
}


@pytest.fixture(params=list(PARTS))
def policy(request: Any) -> VLLMPolicy:
    model, evictor = PARTS[request.param]
    return vllm_policy(model, evictor, max_context=384)


def test_laws(policy: VLLMPolicy) -> None:
    evictor: Any = policy.engine.evictor
    check_policy(policy, interval=evictor.interval if evictor else 1, examples=2)

"""The policy contract on the torch engine."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from kvrescue.evictors import RKV, SnapKV
from kvrescue.evictors.base import Evictor
from kvrescue.policies.torch import TorchPolicy
from tests.policies.contract import *  # noqa: F403
from tests.policies.parts import BASE, HELPER, idle

PARTS: dict[str, tuple[str, Evictor | None]] = {
    "every token": (BASE, RKV(budget=32, window=16, observation=8, interval=1)),
    "every fourth": (BASE, SnapKV(budget=32, window=16, observation=8, interval=4)),
    "full": (HELPER, None),
}


@functools.cache
def build(name: str) -> TorchPolicy:
    model, evictor = PARTS[name]
    return TorchPolicy(model, evictor=evictor, max_context=384, device="cpu")


@pytest.fixture(params=list(PARTS))
def policy(request: Any) -> TorchPolicy:
    found = build(request.param)
    assert idle(found)
    return found

"""Engines shared by the tests of the vLLM backend: starting one takes seconds."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from kvrescue.evictors.base import Evictor
from kvrescue.policies.torch import TorchPolicy
from kvrescue.policies.vllm.engine import VLLMSequence
from kvrescue.policies.vllm.policy import VLLMPolicy
from tests.policies.parts import BASE, HELPER, SMOLLM

_MEMORY = {BASE: 32 << 20, HELPER: 32 << 20, SMOLLM: 256 << 20}


@functools.cache
def _policy(
    model: str, evictor: Evictor | None, options: tuple[tuple[str, Any], ...], **kwargs: Any
) -> VLLMPolicy:
    kwargs.setdefault("kv_cache_bytes", _MEMORY[model])
    return VLLMPolicy(model, evictor=evictor, options=dict(options), **kwargs)


def vllm_policy(
    model: str, evictor: Evictor | None, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> VLLMPolicy:
    """A policy that later tests may get, too; its engine is idle between tests."""
    policy = _policy(model, evictor, tuple(sorted((options or {}).items())), **kwargs)
    assert not any(policy.engine.in_use.values()), policy.engine.in_use
    return policy


@functools.cache
def torch_policy(model: str, evictor: Evictor | None) -> TorchPolicy:
    return TorchPolicy(model, evictor=evictor, device="cpu")


def blocks_of(policy: VLLMPolicy, sequence: VLLMSequence) -> int:
    return len(policy.engine.driver.scheduler.held[sequence.state].blocks)


T = TypeVar("T")


def leaving_the_process_alone(build: Callable[[], T]) -> T:
    """What `build` builds. vLLM seeds every generator of the process when an engine starts, and
    turns off torch.set_num_threads: the next draws are those that would have come anyway."""

    def seed() -> None:
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)

    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(1).item()

    seed()
    expected = draw()
    seed()
    set_num_threads = torch.set_num_threads
    built = build()
    assert draw() == expected
    assert torch.set_num_threads is set_num_threads
    return built

"""Engines shared by the tests of the vLLM backend: starting one takes seconds."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

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

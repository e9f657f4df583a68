"""Policies: models that propose steps. `TorchPolicy` and `VLLMPolicy` are imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvrescue.policies.base import Policy, PolicySpec, Sampling, View

if TYPE_CHECKING:
    from kvrescue.policies.torch import TorchPolicy, TorchPolicySpec
    from kvrescue.policies.vllm.policy import VLLMPolicy, VLLMPolicySpec

__all__ = [
    "Policy",
    "PolicySpec",
    "Sampling",
    "TorchPolicy",
    "TorchPolicySpec",
    "VLLMPolicy",
    "VLLMPolicySpec",
    "View",
]


def __getattr__(name: str) -> Any:
    if name in ("TorchPolicy", "TorchPolicySpec"):
        from kvrescue.policies import torch

        return getattr(torch, name)
    if name in ("VLLMPolicy", "VLLMPolicySpec"):
        from kvrescue.policies.vllm import policy

        return getattr(policy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Policies: models that propose steps. `TorchPolicy` and `VLLMPolicy` are imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvrescue.policies.base import Policy, PolicySpec, Sampling, View

if TYPE_CHECKING:
    from kvrescue.policies.specs import TorchPolicySpec, VLLMPolicySpec
    from kvrescue.policies.torch import TorchPolicy
    from kvrescue.policies.vllm.policy import VLLMPolicy

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
    if name == "TorchPolicy":
        from kvrescue.policies.torch import TorchPolicy

        return TorchPolicy
    if name == "VLLMPolicy":
        from kvrescue.policies.vllm.policy import VLLMPolicy

        return VLLMPolicy
    if name in ("TorchPolicySpec", "VLLMPolicySpec"):
        from kvrescue.policies import specs

        return getattr(specs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Policies: models that propose steps. `TorchPolicy` is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvrescue.policies.base import Policy, PolicySpec, Sampling, View

if TYPE_CHECKING:
    from kvrescue.policies.specs import TorchPolicySpec
    from kvrescue.policies.torch import TorchPolicy

__all__ = ["Policy", "PolicySpec", "Sampling", "TorchPolicy", "TorchPolicySpec", "View"]


def __getattr__(name: str) -> Any:
    if name == "TorchPolicy":
        from kvrescue.policies.torch import TorchPolicy

        return TorchPolicy
    if name == "TorchPolicySpec":
        from kvrescue.policies.specs import TorchPolicySpec

        return TorchPolicySpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

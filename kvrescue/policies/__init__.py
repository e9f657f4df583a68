"""Policies: models that propose steps. `TorchPolicy` is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvrescue.policies.base import Policy, PolicySpec, Sampling, View

if TYPE_CHECKING:
    from kvrescue.policies.torch import TorchPolicy, TorchPolicySpec

__all__ = ["Policy", "PolicySpec", "Sampling", "TorchPolicy", "TorchPolicySpec", "View"]


def __getattr__(name: str) -> Any:
    if name in ("TorchPolicy", "TorchPolicySpec"):
        from kvrescue.policies import torch

        return getattr(torch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The vLLM backend: KV-Rescue on stock vLLM, out of tree. vLLM is imported when a policy is built.

Nothing of vLLM is copied: a scheduler class, a worker class, a KV cache spec and, on the instances
of its own engine, two wrapped methods; two more, for ranks, while an engine starts. See
`refusals.REFUSALS` for what is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvrescue.policies.vllm.policy import VLLMPolicy

__all__ = ["VLLMPolicy"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from kvrescue.policies.vllm import policy

        return getattr(policy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

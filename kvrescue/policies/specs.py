"""Options of the built-in policies; importable, and printable, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from kvrescue.engine.choices import DType, Template, no_shared_prefix
from kvrescue.evictors.base import Evictor
from kvrescue.faults import CONFIG_ERROR
from kvrescue.policies.base import PolicySpec
from kvrescue.registry import EvictorField
from kvrescue.sampling import MOST_CANDIDATES

if TYPE_CHECKING:
    from kvrescue.policies.torch import TorchPolicy
    from kvrescue.policies.vllm.policy import VLLMPolicy

__all__ = ["TorchPolicySpec", "VLLMPolicySpec", "with_interval"]


class TorchPolicySpec(PolicySpec):
    """`kind: torch` in a configuration; the fields are `TorchPolicy`'s arguments."""

    kind: ClassVar[str] = "torch"

    model: str = Field(min_length=1)
    """Folder, hub name, `tiny/base`, `tiny/helper`, `gguf:PACKAGE` or a .gguf file."""
    evictor: EvictorField = None
    """None: full context."""
    system: str | None = None
    """System message of the chat template."""
    template: Template = "chat"
    """"chat": the question goes through the tokenizer's chat template; "raw": it is encoded as it
    is."""
    max_context: int | None = Field(default=None, ge=2)
    """Tokens of prompt and steps; None: the model's limit, at most 4096."""
    max_live_rows: int = Field(default=1024, ge=1)
    """Candidates that decode at once; more wait for a free row."""
    device: str | None = None
    """None: CUDA when there is one, else the CPU."""
    dtype: DType = "auto"
    """auto: bfloat16 on CUDA, float32 on the CPU."""
    graphs: bool = False
    """Decode from CUDA graphs. Off, because no GPU has run them yet: `python -m benchmarks.gpu`
    compares them with steps that are not captured."""
    share_prefix: bool | None = None
    """Candidates of one problem hold and read its context once, up to eight of them at a time,
    instead of a copy each. Not with an evictor, nor with `graphs`. None: where it can be had, on
    the CPU; no GPU has measured it yet."""

    @field_validator("share_prefix")
    @classmethod
    def _can_be_shared(cls, asked: bool | None, info: ValidationInfo) -> bool | None:
        """Before a model is loaded; whether the device can do it is for the engine to say."""
        evictor, graphs = (info.data.get(name) for name in ("evictor", "graphs"))
        evicts = isinstance(evictor, Evictor) and evictor.bounded
        if asked and (why := no_shared_prefix(evicts=evicts, graphs=bool(graphs))):
            raise PydanticCustomError(
                CONFIG_ERROR, "{why}", {"why": f"true does not go with {why}; leave one out"}
            )
        return asked

    def build(self) -> TorchPolicy:
        from kvrescue.policies.torch import TorchPolicy

        return TorchPolicy(**{name: getattr(self, name) for name in type(self).model_fields})


INTERVAL = 16
"""Tokens between evictions where the evictor does not say."""


def with_interval(evictor: Evictor) -> Evictor:
    """The evictor, with this backend's interval where none was given."""
    if "interval" in evictor.model_fields_set or not evictor.bounded:
        return evictor
    return evictor.model_copy(update={"interval": INTERVAL})


class VLLMPolicySpec(PolicySpec):
    """`kind: vllm` in a configuration; the fields are `VLLMPolicy`'s arguments."""

    kind: ClassVar[str] = "vllm"

    model: str = Field(min_length=1)
    """Folder, hub name, `tiny/base`, `tiny/helper`, `gguf:PACKAGE` or a .gguf file."""
    evictor: EvictorField = None
    """None: full context, with vLLM's prefix caching."""
    system: str | None = None
    """System message of the chat template."""
    template: Template = "chat"
    """"chat": the question goes through the tokenizer's chat template; "raw": it is encoded as it
    is."""
    max_context: int | None = Field(default=None, ge=2)
    """Tokens of prompt and steps; None: the model's limit, at most 4096."""
    max_live_rows: int = Field(default=128, ge=1)
    """Requests that decode at once; more wait."""
    candidates: int = Field(default=1, ge=1, le=MOST_CANDIDATES)
    """Candidates per problem that blocks are promised for when it opens, at least: a proposer that
    draws more has its number promised."""
    kv_cache_bytes: int | None = Field(default=None, ge=1)
    """Memory of the KV cache; None: room for `max_live_rows` full contexts, at most 1 GiB, on the
    CPU, and vLLM's share on CUDA."""
    dtype: DType = "auto"
    """auto: bfloat16 on CUDA, float32 on the CPU."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Further fields of vLLM's EngineArgs, such as tensor_parallel_size."""

    @field_validator("evictor")
    @classmethod
    def _interval(cls, evictor: Evictor | None) -> Evictor | None:
        """Made explicit here, so that a resolved configuration says what runs."""
        return None if evictor is None else with_interval(evictor)

    def build(self) -> VLLMPolicy:
        from kvrescue.policies.vllm.policy import VLLMPolicy

        return VLLMPolicy(**{name: getattr(self, name) for name in type(self).model_fields})

"""Options of the built-in policies; importable, and printable, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from kvrescue.engine.choices import DType, Template
from kvrescue.policies.base import PolicySpec
from kvrescue.registry import EvictorField

if TYPE_CHECKING:
    from kvrescue.policies.torch import TorchPolicy

__all__ = ["TorchPolicySpec"]


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
    max_context: int | None = Field(default=None, ge=2)
    """Tokens of prompt and steps; None: the model's limit, at most 4096."""
    max_live_rows: int = Field(default=1024, ge=1)
    """Candidates that decode at once; more wait for a free row."""
    device: str | None = None
    """None: CUDA when there is one, else the CPU."""
    dtype: DType = "auto"
    """auto: bfloat16 on CUDA, float32 on the CPU."""

    def build(self) -> TorchPolicy:
        from kvrescue.policies.torch import TorchPolicy

        return TorchPolicy(**{name: getattr(self, name) for name in type(self).model_fields})

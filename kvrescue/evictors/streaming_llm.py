"""StreamingLLM: attention sinks plus the most recent entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from kvrescue.evictors.base import Evictor, KVSlice

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["StreamingLLM"]


class StreamingLLM(Evictor):
    """The first `sinks` tokens of the sequence and the newest ones (the StreamingLLM paper).

    Keeps `sinks` + (`budget` - `sinks`) + `window` entries: sinks count inside the budget, and what
    is left of it prolongs the recent window. Rotary positions stay logical, as in the R-KV and
    kvpress versions (the paper renumbers them inside the cache).
    """

    kind: ClassVar[str] = "streaming_llm"
    needs_keys: ClassVar[bool] = False

    sinks: int = Field(default=4, ge=0)
    """Entries at the start of the sequence that stay: those with logical position < `sinks`, or
    the first `sinks` entries when the slice carries no positions."""

    @model_validator(mode="after")
    def _sinks_fit(self) -> Self:
        if self.sinks > self.budget:
            raise ValueError(
                f"sinks {self.sinks} exceed budget {self.budget} (sinks count inside the budget); "
                f"raise budget or lower sinks to at most {self.budget}"
            )
        return self

    def score(self, kv: KVSlice) -> Tensor:
        """Recency 0..length-1, sinks above all; float32 [rows, kv_heads, length]."""
        import torch

        rows, heads, length, _ = kv.keys.shape
        index = torch.arange(length, device=kv.keys.device)
        recency = index.to(torch.float32).expand(rows, heads, length)
        position = index if kv.positions is None else kv.positions
        return torch.where(position < self.sinks, float(2 * length), recency)

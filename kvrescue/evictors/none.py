"""No eviction: the full cache, behind the same interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from kvrescue.evictors.base import Evictor, KVSlice

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NoEviction"]

_UNBOUNDED = 2**31 - 1


class NoEviction(Evictor):
    """Keeps everything.

    Needs no `budget` and takes none: its one admissible value is 2**31 - 1, more than any context
    holds. `bounded` is False: B' is no capacity to allocate, and the audit reports no bound.
    """

    kind: ClassVar[str] = "none"
    bounded: ClassVar[bool] = False

    budget: int = Field(default=_UNBOUNDED, gt=0)
    window: int = Field(default=0, ge=0)

    @field_validator("budget")
    @classmethod
    def _no_budget(cls, budget: int) -> int:
        if budget != _UNBOUNDED:
            raise ValueError(
                f"budget {budget} has no meaning for evictor 'none', which keeps everything; "
                "leave it out or choose another evictor"
            )
        return budget

    def score(self, kv: KVSlice) -> Tensor:
        """Zeros, float32 [rows, kv_heads, length]; `select` never needs them."""
        import torch

        return torch.zeros(kv.keys.shape[:3], dtype=torch.float32, device=kv.keys.device)

"""Options of the built-in scorers; importable, and printable, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from kvrescue.engine.choices import DType, Template
from kvrescue.scorers.base import ScorerSpec

if TYPE_CHECKING:
    from kvrescue.scorers.likelihood import LikelihoodScorer
    from kvrescue.scorers.qwen_prm import QwenPRM

__all__ = ["SYSTEM", "Convention", "LikelihoodSpec", "QwenPRMSpec", "Reduce"]

Reduce = Literal["mean", "min"]
Convention = Literal["step_tag", "separator"]
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
"""System message of the published PRM's model card."""


class QwenPRMSpec(ScorerSpec):
    """`kind: qwen_prm` in a configuration; the fields are `QwenPRM`'s arguments."""

    kind: ClassVar[str] = "qwen_prm"

    model: str = Field(min_length=1)
    convention: Convention = "step_tag"
    """Where the score is read: at a step tag (model card) or at the separator (paper, TRL)."""
    step_tag: str = Field(default="<extra_0>", min_length=1)
    system: str | None = SYSTEM
    max_context: int | None = Field(default=None, ge=2)
    device: str | None = None
    dtype: DType = "auto"

    def build(self) -> QwenPRM:
        from kvrescue.scorers.qwen_prm import QwenPRM

        return QwenPRM(**{name: getattr(self, name) for name in type(self).model_fields})


class LikelihoodSpec(ScorerSpec):
    """`kind: likelihood` in a configuration: the judging model and how to pool its tokens."""

    kind: ClassVar[str] = "likelihood"

    model: str = Field(min_length=1)
    """As for `kind: torch`; weights are shared with a policy of the same model."""
    reduce: Reduce = "mean"
    system: str | None = None
    template: Template = "chat"
    max_context: int | None = Field(default=None, ge=2)
    device: str | None = None
    dtype: DType = "auto"

    def build(self) -> LikelihoodScorer:
        from kvrescue.policies.torch import TorchPolicy
        from kvrescue.scorers.likelihood import LikelihoodScorer

        options = {n: getattr(self, n) for n in type(self).model_fields if n != "reduce"}
        return LikelihoodScorer(TorchPolicy(**options), reduce=self.reduce)

"""Scorers: what ranks candidate steps. The model-based ones are imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvrescue.scorers.base import Scorer, ScorerSpec

if TYPE_CHECKING:
    from kvrescue.scorers.likelihood import LikelihoodScorer
    from kvrescue.scorers.qwen_prm import QwenPRM
    from kvrescue.scorers.specs import LikelihoodSpec, QwenPRMSpec

__all__ = ["LikelihoodScorer", "LikelihoodSpec", "QwenPRM", "QwenPRMSpec", "Scorer", "ScorerSpec"]


def __getattr__(name: str) -> Any:
    if name == "LikelihoodScorer":
        from kvrescue.scorers.likelihood import LikelihoodScorer

        return LikelihoodScorer
    if name == "QwenPRM":
        from kvrescue.scorers.qwen_prm import QwenPRM

        return QwenPRM
    if name in ("LikelihoodSpec", "QwenPRMSpec"):
        from kvrescue.scorers import specs

        return getattr(specs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

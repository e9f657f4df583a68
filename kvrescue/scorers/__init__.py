"""Scorers: what ranks candidate steps. The model-based ones are imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvrescue.scorers.base import Scorer, ScorerSpec

if TYPE_CHECKING:
    from kvrescue.scorers.likelihood import LikelihoodScorer, LikelihoodSpec
    from kvrescue.scorers.qwen_prm import QwenPRM, QwenPRMSpec

__all__ = ["LikelihoodScorer", "LikelihoodSpec", "QwenPRM", "QwenPRMSpec", "Scorer", "ScorerSpec"]


def __getattr__(name: str) -> Any:
    if name in ("LikelihoodScorer", "LikelihoodSpec"):
        from kvrescue.scorers import likelihood

        return getattr(likelihood, name)
    if name in ("QwenPRM", "QwenPRMSpec"):
        from kvrescue.scorers import qwen_prm

        return getattr(qwen_prm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

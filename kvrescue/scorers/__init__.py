"""Scorers: what ranks candidate steps. The model-based ones are imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from kvrescue.scorers.base import Scorer, ScorerSpec

if TYPE_CHECKING:
    from kvrescue.scorers.http_prm import HTTPPRM
    from kvrescue.scorers.likelihood import LikelihoodScorer
    from kvrescue.scorers.qwen_prm import QwenPRM
    from kvrescue.scorers.specs import HTTPPRMSpec, LikelihoodSpec, QwenPRMSpec, VLLMPRMSpec
    from kvrescue.scorers.vllm_prm import VLLMPRM

__all__ = [
    "HTTPPRM",
    "VLLMPRM",
    "HTTPPRMSpec",
    "LikelihoodScorer",
    "LikelihoodSpec",
    "QwenPRM",
    "QwenPRMSpec",
    "Scorer",
    "ScorerSpec",
    "VLLMPRMSpec",
]

_SCORERS: Final = {
    "HTTPPRM": "kvrescue.scorers.http_prm",
    "LikelihoodScorer": "kvrescue.scorers.likelihood",
    "QwenPRM": "kvrescue.scorers.qwen_prm",
    "VLLMPRM": "kvrescue.scorers.vllm_prm",
}


def __getattr__(name: str) -> Any:
    if name in _SCORERS:
        return getattr(importlib.import_module(_SCORERS[name]), name)
    if name in __all__:
        from kvrescue.scorers import specs

        return getattr(specs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Sampling: how candidates are drawn, shared by configuration, policies and engines."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from kvrescue.options import Options

__all__ = ["MOST_CANDIDATES", "Sampling"]

MOST_CANDIDATES: Final = 4096
"""Of one proposer in a step: far above what is known to help, and still an end to the work."""


class Sampling(Options):
    """How candidates are drawn. Defaults are the paper's (appendix "Decoding and evaluation")."""

    temperature: float = Field(default=0.8, ge=0.0, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)
    """Draw from the fewest tokens that have this probability together; 1 turns it off."""
    top_k: int = Field(default=20, ge=0)
    """0 turns it off."""
    max_step_tokens: int = Field(default=512, ge=1)
    """Tokens of a step at most."""
    separator: str = Field(default="\n\n", min_length=1)
    """What ends a step; part of its text."""

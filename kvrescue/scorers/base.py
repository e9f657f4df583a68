"""Scorer: gives every candidate a number in [0, 1] given the context."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

from kvrescue.options import Options
from kvrescue.types import Candidate, Context

__all__ = ["Scorer", "ScorerSpec"]


class Scorer(abc.ABC):
    """A process reward model or anything that ranks candidate steps."""

    @abc.abstractmethod
    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """One score in [0, 1] per candidate, in order.

        The selector checks count, range and finiteness. State kept between calls (a prefix KV,
        say) is keyed by `context.trajectory`.
        """

    async def release(self, context: Context) -> None:  # noqa: B027 - optional hook
        """Called once when the trajectory ends; drop what was kept for it."""

    async def aclose(self) -> None:  # noqa: B027 - optional hook
        """Release long-lived resources."""


class ScorerSpec(Options, abc.ABC):
    """Options of a scorer as they stand in a configuration file; `build()` loads the real thing."""

    kind: ClassVar[str] = ""
    """The name it is registered under (`kind: qwen_prm` in YAML)."""

    @abc.abstractmethod
    def build(self) -> Scorer:
        """Load weights and start what serves them."""

"""Policy: a model that proposes steps; View: its private state for one trajectory."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

from kvrescue.detectors.base import Detector, Source
from kvrescue.evictors.firing import Watch
from kvrescue.options import Options
from kvrescue.sampling import Sampling
from kvrescue.types import CacheStats, Candidate, Question

__all__ = ["Policy", "PolicySpec", "Sampling", "View"]


class View(abc.ABC):
    """One policy's persistent state for one trajectory; only it knows what was evicted.

    Law: the view's logical length always equals the context's (in its own tokens).
    """

    @abc.abstractmethod
    async def propose(
        self,
        n: int,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        max_tokens: int,
    ) -> list[Candidate]:
        """Draw `n` candidates from the current state, candidate i with `seeds[i]`.

        Every candidate is read by `DetectorBank(detectors)`; the detectors know the context.
        A candidate never exceeds min(sampling.max_step_tokens, max_tokens) tokens. An aborted
        candidate stops consuming compute at once and comes back with its verdict. The forks stay
        held until the next `commit` or `propose`.
        """

    @abc.abstractmethod
    async def commit(self, candidate: Candidate) -> None:
        """Advance to `candidate`: adopt the fork of an own one, encode a foreign one in a single
        forward pass and then evict (paper, Algorithm 1 lines 10-16)."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Free everything; idempotent. Raises `AuditError` if an evictor never fired though it
        should have."""

    @property
    @abc.abstractmethod
    def stats(self) -> CacheStats:
        """What the view's cache holds now, in its own tokens."""

    @property
    @abc.abstractmethod
    def room(self) -> int:
        """Tokens that still fit into the policy's context limit."""


class Policy(abc.ABC):
    """Long-lived: weights, tokenizer, engine. `name` is set by the proposer that uses it."""

    @abc.abstractmethod
    async def open(self, question: Question, name: str) -> View:
        """Start a trajectory: encode the prompt (then evict). Candidates are labelled `name`.

        Raises `InputError` when the prompt does not fit the context limit.
        """

    async def open_watched(self, question: Question, name: str, watch: Watch) -> View:
        """`open` a view whose evictions are told to `watch`; called only when somebody listens.

        A policy that does not override this tells of none.
        """
        return await self.open(question, name)

    @property
    @abc.abstractmethod
    def source(self) -> Source:
        """What detectors attached to this policy will be fed (max_step_tokens is the default)."""

    def source_of(self, name: str) -> Source:
        """`source` for the proposer `name`, where it depends on that."""
        return self.source

    def expect(self, candidates: int) -> None:  # noqa: B027 - optional hook
        """Told by every selector that will use it, before any trajectory is opened: one of its
        views draws `candidates` at a time."""

    async def aclose(self) -> None:  # noqa: B027 - optional hook
        """Release long-lived resources."""


class PolicySpec(Options, abc.ABC):
    """Options of a policy as they stand in a configuration file; `build()` loads the real thing.

    A spec is what gets registered (`kvrescue_register_policies`). Its module may import heavy
    packages; the registry imports it only when a configuration names its kind.
    """

    kind: ClassVar[str] = ""
    """The name it is registered under (`kind: torch` in YAML)."""

    @abc.abstractmethod
    def build(self) -> Policy:
        """Load weights and start the engine."""

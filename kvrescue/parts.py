"""Parts: policies and scorers built from specs, equal ones once.

A `Rescue` made from a configuration owns its parts; a program that runs many configurations one
after the other keeps one `Parts` and passes it to each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvrescue.policies.base import Policy, PolicySpec
from kvrescue.registry import missing_package
from kvrescue.scorers.base import Scorer, ScorerSpec
from kvrescue.views import Proposer

if TYPE_CHECKING:
    from kvrescue.config import RescueConfig

__all__ = ["Parts"]


@contextlib.contextmanager
def _packages(what: str, spec: PolicySpec | ScorerSpec) -> Iterator[None]:
    """Specs are importable without the packages that their parts need."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package(f"{what} {spec.kind!r}", error) from error


@dataclass
class Parts:
    """What was built so far, with the spec it was built from."""

    policies: list[tuple[PolicySpec, Policy]] = field(default_factory=list)
    scorers: list[tuple[ScorerSpec, Scorer]] = field(default_factory=list)

    def policy(self, spec: PolicySpec) -> Policy:
        """The policy of `spec`, built now unless an equal one was."""
        for known, policy in self.policies:
            if known == spec:
                return policy
        with _packages("policy", spec):
            policy = spec.build()
        self.policies.append((spec, policy))
        return policy

    def scorer(self, spec: ScorerSpec) -> Scorer:
        """The scorer of `spec`, built now unless an equal one was."""
        for known, scorer in self.scorers:
            if known == spec:
                return scorer
        with _packages("scorer", spec):
            scorer = spec.build()
        self.scorers.append((spec, scorer))
        return scorer

    def proposers(self, config: RescueConfig) -> list[Proposer]:
        """The proposers of a configuration, in order."""
        return [
            Proposer(self.policy(section.policy), section.candidates, section.detectors, name)
            for name, section in config.proposers.items()
        ]

    async def keep_only(self, config: RescueConfig) -> None:
        """Close what a configuration does not use, so that its own parts find room."""
        wanted = [section.policy for section in config.proposers.values()]
        rest = Parts(
            [part for part in self.policies if part[0] not in wanted],
            [part for part in self.scorers if part[0] != config.scorer],
        )
        self.policies = [part for part in self.policies if part[0] in wanted]
        self.scorers = [part for part in self.scorers if part[0] == config.scorer]
        await rest.aclose()

    async def aclose(self) -> None:
        """Close every part, even when one of them fails; the first failure is raised."""
        parts: list[Policy | Scorer] = [policy for _, policy in self.policies]
        parts += [scorer for _, scorer in self.scorers]
        self.policies, self.scorers = [], []
        results = await asyncio.gather(*(part.aclose() for part in parts), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def __bool__(self) -> bool:
        """Whether anything is built."""
        return bool(self.policies or self.scorers)

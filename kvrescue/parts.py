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

from kvrescue.errors import KVRescueError, PolicyError, ScorerError, located
from kvrescue.policies.base import Policy, PolicySpec
from kvrescue.registry import missing_package
from kvrescue.scorers.base import Scorer, ScorerSpec
from kvrescue.views import Proposer

if TYPE_CHECKING:
    from kvrescue.config import RescueConfig

__all__ = ["Parts"]


@contextlib.contextmanager
def _building(what: str, spec: PolicySpec | ScorerSpec, path: str) -> Iterator[None]:
    """What building raises, as an error of ours that begins with the place in the configuration.

    A package that is missing shows only now: specs are importable without it.
    """
    try:
        yield
    except KVRescueError as error:
        raise located(path, error) from error.__cause__
    except ModuleNotFoundError as error:
        raise located(path, missing_package(f"{what} {spec.kind!r}", error)) from error
    except Exception as error:
        failed = PolicyError if isinstance(spec, PolicySpec) else ScorerError
        raise failed(
            f"{path}: {what} {spec.kind!r} cannot be built: {type(error).__name__}: {error}"
        ) from error


@dataclass
class Parts:
    """What was built so far, with the spec it was built from."""

    policies: list[tuple[PolicySpec, Policy]] = field(default_factory=list)
    """In the order in which they were built."""
    scorers: list[tuple[ScorerSpec, Scorer]] = field(default_factory=list)
    """In the order in which they were built."""

    def policy(self, spec: PolicySpec, path: str = "policy") -> Policy:
        """The policy of `spec`, built now unless an equal one was; errors begin with `path`, its
        place in a configuration."""
        for known, policy in self.policies:
            if known == spec:
                return policy
        with _building("policy", spec, path):
            policy = spec.build()
        self.policies.append((spec, policy))
        return policy

    def scorer(self, spec: ScorerSpec, path: str = "scorer") -> Scorer:
        """The same of a scorer."""
        for known, scorer in self.scorers:
            if known == spec:
                return scorer
        with _building("scorer", spec, path):
            scorer = spec.build()
        self.scorers.append((spec, scorer))
        return scorer

    def proposers(self, config: RescueConfig) -> list[Proposer]:
        """The proposers of a configuration, in order."""
        return [
            Proposer(
                self.policy(section.policy, f"proposers.{name}.policy"),
                section.candidates,
                section.detectors,
                name,
            )
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

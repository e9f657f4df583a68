"""The methods of the paper's tables, each a composition of the same parts.

None of them is a branch of the selector: full-KV is the base without its evictor, best-of-N the
evicted base unscreened and alone, helper-only the helper alone, interleaving KV-Rescue without its
detectors, and KV-Rescue the composition as configured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from kvrescue.config import ProposerConfig, RescueConfig
from kvrescue.errors import ConfigError, UnknownNameError, nearest
from kvrescue.evictors.base import Evictor
from kvrescue.faults import whole_number
from kvrescue.policies.base import PolicySpec
from kvrescue.sampling import MOST_CANDIDATES
from kvrescue.scorers.base import Scorer
from kvrescue.types import Candidate, Context

__all__ = [
    "BASE",
    "EVICTED",
    "HELPER",
    "METHODS",
    "Indifferent",
    "Method",
    "compose",
    "evictor_of",
    "needs_no_scorer",
    "require_proposers",
]

Method: TypeAlias = Literal["full_kv", "helper", "best_of_n", "interleaved", "kv_rescue"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
EVICTED: Final[tuple[Method, ...]] = ("best_of_n", "interleaved", "kv_rescue")
"""Those that a budget applies to."""

BASE: Final = "base"
HELPER: Final = "helper"


def require_proposers(config: RescueConfig) -> None:
    """Refuse a configuration without the two proposers that the methods are made of.

    Raises:
        ConfigError: one is missing.
    """
    for name in (BASE, HELPER):
        if name not in config.proposers:
            raise ConfigError(f"the methods compare proposers {BASE!r} and {HELPER!r}: no {name!r}")


def compose(config: RescueConfig, method: Method, n: int) -> RescueConfig:
    """The configuration of a method, derived from that of KV-Rescue.

    Args:
        config: with proposers named `base` (evicted, screened) and `helper`.
        method: which method.
        n: candidates of each proposer in a step.

    Raises:
        ConfigError: a proposer is missing, or `n` is out of range.
    """
    require_proposers(config)
    whole_number("n", n, 1, MOST_CANDIDATES)
    base, helper = config.proposers[BASE], config.proposers[HELPER]
    unscreened = _changed(base, detectors=())
    proposers: dict[str, ProposerConfig]
    match method:
        case "full_kv":
            proposers = {BASE: _changed(unscreened, policy=_without_evictor(base.policy))}
        case "helper":
            proposers = {HELPER: helper}
        case "best_of_n":
            proposers = {BASE: unscreened}
        case "interleaved":
            proposers = {BASE: unscreened, HELPER: helper}
        case "kv_rescue":
            proposers = {BASE: base, HELPER: helper}
        case _:
            raise UnknownNameError(f"unknown method {method!r}{nearest(method, METHODS)}")
    chosen = {name: _changed(part, candidates=n) for name, part in proposers.items()}
    return config.model_copy(update={"proposers": chosen})


def evictor_of(config: RescueConfig) -> Evictor:
    """The base's evictor.

    Raises:
        ConfigError: it has none.
    """
    evictor = getattr(config.proposers[BASE].policy, "evictor", None)
    if not isinstance(evictor, Evictor):
        raise ConfigError(f"proposer {BASE!r} has no evictor: there would be nothing to rescue")
    return evictor


def needs_no_scorer(config: RescueConfig) -> bool:
    """Whether every round has one candidate, which is chosen whatever its score."""
    sections = tuple(config.proposers.values())
    return len(sections) == 1 and sections[0].candidates == 1


class Indifferent(Scorer):
    """Stands in for the scorer where `needs_no_scorer`: its scores mean nothing."""

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return [1.0] * len(candidates)


def _changed(section: ProposerConfig, **fields: Any) -> ProposerConfig:
    return section.model_copy(update=fields)


def _without_evictor(policy: PolicySpec) -> PolicySpec:
    if "evictor" not in type(policy).model_fields:
        raise ConfigError(f"a policy of kind {policy.kind!r} has no evictor to leave out")
    return policy.model_copy(update={"evictor": None})

"""kvrescue: recover what KV-cache eviction loses, by stepwise composition of policies.

    from kvrescue import Rescue

    with Rescue.from_config("tiny") as rescue:
        print(rescue.solve("...").answer)

Importing the package imports neither torch nor vLLM; names below are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvrescue import registry as _registry

if TYPE_CHECKING:
    from kvrescue.config import RescueConfig, config_hash, load_config, resolved_yaml
    from kvrescue.detectors.base import Detector, DetectorState, Source, TokenEvent
    from kvrescue.errors import KVRescueError
    from kvrescue.events import (
        CandidateFinished,
        Event,
        EvictionFired,
        RoundSkipped,
        StepCommitted,
        TraceWriter,
        TrajectoryFinished,
        TrajectoryStarted,
    )
    from kvrescue.evictors.base import Evictor, KVSlice
    from kvrescue.hookspecs import hookimpl
    from kvrescue.pipeline import Rescue
    from kvrescue.plugins import register, unregister
    from kvrescue.policies.base import Policy, PolicySpec, Sampling, View
    from kvrescue.registry import EvictorField
    from kvrescue.rules import Limits
    from kvrescue.scorers.base import Scorer, ScorerSpec
    from kvrescue.selector import Proposer, StepwiseSelector
    from kvrescue.types import (
        CacheStats,
        Candidate,
        CommittedStep,
        Context,
        Degradation,
        Question,
        Solution,
        SolutionStop,
        StopReason,
        TokenUse,
        Verdict,
    )

__version__ = "0.1.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "config": ("RescueConfig", "config_hash", "load_config", "resolved_yaml"),
    "detectors.base": ("Detector", "DetectorState", "Source", "TokenEvent"),
    "errors": ("KVRescueError",),
    "events": (
        "CandidateFinished",
        "Event",
        "EvictionFired",
        "RoundSkipped",
        "StepCommitted",
        "TraceWriter",
        "TrajectoryFinished",
        "TrajectoryStarted",
    ),
    "evictors.base": ("Evictor", "KVSlice"),
    "hookspecs": ("hookimpl",),
    "pipeline": ("Rescue",),
    "plugins": ("register", "unregister"),
    "policies.base": ("Policy", "PolicySpec", "Sampling", "View"),
    "registry": ("EvictorField",),
    "rules": ("Limits",),
    "scorers.base": ("Scorer", "ScorerSpec"),
    "selector": ("Proposer", "StepwiseSelector"),
    "types": (
        "CacheStats",
        "Candidate",
        "CommittedStep",
        "Context",
        "Degradation",
        "Question",
        "Solution",
        "SolutionStop",
        "StopReason",
        "TokenUse",
        "Verdict",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CacheStats",
    "Candidate",
    "CandidateFinished",
    "CommittedStep",
    "Context",
    "Degradation",
    "Detector",
    "DetectorState",
    "Event",
    "EvictionFired",
    "Evictor",
    "EvictorField",
    "KVRescueError",
    "KVSlice",
    "Limits",
    "Policy",
    "PolicySpec",
    "Proposer",
    "Question",
    "Rescue",
    "RescueConfig",
    "RoundSkipped",
    "Sampling",
    "Scorer",
    "ScorerSpec",
    "Solution",
    "SolutionStop",
    "Source",
    "StepCommitted",
    "StepwiseSelector",
    "StopReason",
    "TokenEvent",
    "TokenUse",
    "TraceWriter",
    "TrajectoryFinished",
    "TrajectoryStarted",
    "Verdict",
    "View",
    "__version__",
    "config_hash",
    "hookimpl",
    "load_config",
    "register",
    "resolved_yaml",
    "unregister",
]


def _default_registry() -> _registry.Registry:
    from kvrescue.plugins import default

    return default().registry


# The registry sits below the plugin layer, which fills it; here the two meet.
_registry.set_default(_default_registry)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

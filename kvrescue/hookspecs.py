"""The hooks a plugin may implement. Author's only import: `from kvrescue import hookimpl`.

A plugin is a module, or an object, with functions of these names:

    @hookimpl
    def kvrescue_register_detectors(register):
        register("stutter", Stutter)
"""

from __future__ import annotations

from typing import Final, Protocol

import pluggy
from pydantic import BaseModel

from kvrescue.events import (
    CandidateFinished,
    EvictionFired,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)

__all__ = ["PROJECT", "Register", "hookimpl", "hookspec"]

PROJECT: Final = "kvrescue"
"""The name that pluggy knows the hooks by."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks the functions below as hooks; plugins have no use for it."""
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook of the same name."""


class Register(Protocol):
    """Adds one component under a name; the same name twice within a kind is a `PluginError`."""

    def __call__(self, name: str, component: type[BaseModel] | str) -> None:
        """Register a class, or "package.module:Class" to have it imported when it is used.

        The class's `kind` must equal `name`.
        """


@hookspec
def kvrescue_register_policies(register: Register) -> None:
    """Add policies: subclasses of `kvrescue.policies.base.PolicySpec`."""


@hookspec
def kvrescue_register_evictors(register: Register) -> None:
    """Add evictors: subclasses of `kvrescue.evictors.base.Evictor`."""


@hookspec
def kvrescue_register_detectors(register: Register) -> None:
    """Add detectors: subclasses of `kvrescue.detectors.base.Detector`."""


@hookspec
def kvrescue_register_scorers(register: Register) -> None:
    """Add scorers: subclasses of `kvrescue.scorers.base.ScorerSpec`."""


@hookspec
def kvrescue_trajectory_started(event: TrajectoryStarted) -> None:
    """Every view holds the prompt; the first step is about to be drawn."""


@hookspec
def kvrescue_candidate_finished(event: CandidateFinished) -> None:
    """A candidate was drawn or aborted. Observers run on the event loop: keep them quick."""


@hookspec
def kvrescue_round_skipped(event: RoundSkipped) -> None:
    """No candidate of a round may be chosen; nothing was committed."""


@hookspec
def kvrescue_step_committed(event: StepCommitted) -> None:
    """A step was chosen and every view has advanced to it."""


@hookspec
def kvrescue_trajectory_finished(event: TrajectoryFinished) -> None:
    """A trajectory ended with a solution."""


@hookspec
def kvrescue_eviction_fired(event: EvictionFired) -> None:
    """An evictor dropped entries of a view or of a candidate's fork.

    Called in the middle of the engine's step, perhaps with every token: keep it quick. Engines
    tell of evictions only while some plugin implements this; the torch engine does, vLLM does not.
    """

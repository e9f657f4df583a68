"""Hooks: which there are, and that what a plugin has for one can be called plainly."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

import pluggy

from kvrescue import hookspecs
from kvrescue.errors import PluginError, nearest
from kvrescue.events import (
    CandidateFinished,
    EvictionFired,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.registry import Kind
from kvrescue.tasks import is_async

__all__ = ["HOOKS", "OBSERVER_HOOKS", "REGISTER_HOOKS", "HookManager", "call", "check_hooks"]

_PREFIX: Final = "kvrescue_"

REGISTER_HOOKS: Final[dict[str, Kind]] = {
    "kvrescue_register_policies": "policy",
    "kvrescue_register_evictors": "evictor",
    "kvrescue_register_detectors": "detector",
    "kvrescue_register_scorers": "scorer",
}
"""What plugins add, by hook."""
OBSERVER_HOOKS: Final[dict[type[Any], str]] = {
    TrajectoryStarted: "kvrescue_trajectory_started",
    CandidateFinished: "kvrescue_candidate_finished",
    RoundSkipped: "kvrescue_round_skipped",
    StepCommitted: "kvrescue_step_committed",
    TrajectoryFinished: "kvrescue_trajectory_finished",
    EvictionFired: "kvrescue_eviction_fired",
}
"""Who is told of which event."""
HOOKS: Final = (*REGISTER_HOOKS, *OBSERVER_HOOKS.values())
"""All names, in the order in which they are listed."""


@hookspecs.hookimpl
def _unmarked() -> None:
    """Carries the default options of a hook without `@hookimpl`."""


class HookManager(pluggy.PluginManager):
    """pluggy's, which takes unmarked functions, too."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """A function named exactly like a hook is meant as one, marked or not."""
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None and name in HOOKS and _is_function(plugin, name):
            options = super().parse_hookimpl_opts(sys.modules[__name__], _unmarked.__name__)
        return options


def call(implementation: pluggy.HookImpl, plugin: str, **arguments: object) -> None:
    """Call one plugin's function; what it raises comes back as a PluginError that names it."""
    try:
        implementation.function(*(arguments[name] for name in implementation.argnames))
    except PluginError:
        raise
    except Exception as error:
        hook = implementation.opts.get("specname") or implementation.function.__name__
        raise PluginError(
            f"plugin {plugin!r} failed in {hook}: {type(error).__name__}: {error}"
        ) from error


def _is_function(plugin: object, name: str) -> bool:
    """Whether an attribute is something that can be a hook, and not an imported specification."""
    found = inspect.getattr_static(plugin, name, None)
    function = getattr(found, "__func__", found)
    return inspect.isfunction(function) and not hasattr(function, f"{hookspecs.PROJECT}_spec")


def check_hooks(plugin: object, name: str) -> None:
    """Raise unless every function that looks like a hook is one, and there is at least one."""
    found = []
    for attribute in dir(plugin):
        if not _is_function(plugin, attribute):
            continue
        function = inspect.getattr_static(plugin, attribute)
        options = getattr(
            getattr(function, "__func__", function), f"{hookspecs.PROJECT}_impl", None
        )
        if options is None and not attribute.startswith(_PREFIX):
            continue
        hook = (options or {}).get("specname") or attribute
        if hook not in HOOKS:
            raise PluginError(f"plugin {name!r}: there is no hook {hook!r}{nearest(hook, HOOKS)}")
        _check_signature(getattr(plugin, attribute), hook, name)
        found.append(hook)
    if not found:
        raise PluginError(f"plugin {name!r} implements no hook; hooks: {', '.join(HOOKS)}")


def _check_signature(function: Callable[..., object], hook: str, plugin: str) -> None:
    """Raise unless a hook can be called plainly, with what the specification has."""
    if is_async(function):
        raise PluginError(
            f"plugin {plugin!r}: {hook} is async: hooks are called plainly, and nothing would "
            "await it; make it a plain function, and hand work that waits to a thread of your own"
        )
    known = list(inspect.signature(getattr(hookspecs, hook)).parameters)
    for parameter in inspect.signature(function).parameters.values():
        needed = parameter.default is parameter.empty
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if needed and not variable and parameter.name not in known:
            raise PluginError(
                f"plugin {plugin!r}: {hook} has no argument {parameter.name!r}; it has "
                f"{', '.join(map(repr, known))}"
            )

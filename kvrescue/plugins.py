"""Plugins without entry points: who adds which components, and who watches.

A plugin comes from four places: `kvrescue.register(...)` in the process, `plugins:` in a
configuration file, the environment variable `KVRESCUE_PLUGINS`, and an explicit list (`--plugin`).
Built-ins come first, through the same hooks. A hook that does not exist is an error at once, never
a function that is silently not called.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final, Literal, TypeAlias

import pluggy
from pydantic import BaseModel

from kvrescue import builtins, hookspecs
from kvrescue.detectors.base import Detector
from kvrescue.errors import PluginError, nearest
from kvrescue.events import Event, EvictionFired
from kvrescue.evictors.base import Evictor
from kvrescue.hooks import HOOKS, OBSERVER_HOOKS, REGISTER_HOOKS, HookManager, call, check_hooks
from kvrescue.importing import file_of, import_file, import_module, is_path
from kvrescue.policies.base import PolicySpec
from kvrescue.registry import KINDS, Kind, Registry
from kvrescue.scorers.base import ScorerSpec

__all__ = ["ENVIRONMENT", "Origin", "PluginInfo", "Plugins", "default", "register", "unregister"]

ENVIRONMENT: Final = "KVRESCUE_PLUGINS"
"""The variable that lists plugins, separated by commas."""

Origin: TypeAlias = Literal["builtin", "registered", "config", "environment", "explicit"]
"""Where a plugin was named."""

_BASES: Final[dict[Kind, type[BaseModel]]] = {
    "policy": PolicySpec,
    "evictor": Evictor,
    "detector": Detector,
    "scorer": ScorerSpec,
}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What a plugin is and does."""

    name: str
    """A dotted name, a path, or what it was registered as."""
    origin: Origin
    """Where it was named."""
    hooks: tuple[str, ...]
    """Those it implements."""
    components: dict[Kind, tuple[str, ...]]
    """Names it registered, by kind; kinds it adds nothing to are left out."""


class Plugins:
    """A set of plugins with the registry they fill.

    The process has one default set (`default()`); tests and embedders make their own.
    """

    def __init__(self) -> None:
        self.registry = Registry(_BASES)
        self._manager = HookManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._plugins: dict[str, object] = {}
        self._origins: dict[str, Origin] = {}
        self._lock = threading.RLock()
        self._add(builtins, "builtins", "builtin")

    def register(self, plugin: object, name: str | None = None) -> str:
        """Add a plugin of this process: a module, an object with hooks, or a component class.

        A component class (an evictor, detector, policy spec or scorer spec) is registered under
        its `kind`. Registering the same object again changes nothing; a class that was defined
        anew, as when a cell of a notebook is run again, takes the place of the former one.

        Returns:
            The plugin's name.

        Raises:
            PluginError: a hook does not exist or fails, or a name is taken.
        """
        with self._lock:
            if isinstance(plugin, type):
                plugin = self._component_plugin(plugin)
            former = self._former(plugin)
            if former is None:
                return self._add(plugin, name or self._free_name(plugin), "registered")
            before, origin = self._plugins[former], self._origins[former]
            self.unregister(former)
            try:
                return self._add(plugin, name or former, "registered")
            except BaseException:
                self._add(before, former, origin)
                raise

    def unregister(self, plugin: object) -> None:
        """Remove a plugin and every name it registered.

        Compositions that exist already keep their parts; observers among them are called no more
        in runs that begin from now on.

        Args:
            plugin: its name, which `register` returned, or what was registered.

        Raises:
            PluginError: there is no such plugin.
        """
        with self._lock:
            name = self._registered_name(plugin)
            self._manager.unregister(name=name)
            self.registry.remove_plugin(name)
            del self._origins[name], self._plugins[name]

    def load(
        self, specs: Iterable[str], origin: Origin = "explicit", folder: Path | None = None
    ) -> None:
        """Import plugins and add them; those already here, by whatever name, are left alone.

        Args:
            specs: dotted module names, or paths of Python files ("./my_detector.py").
            origin: where the list comes from.
            folder: what relative paths are relative to (default: the working directory).

        Raises:
            PluginError: a plugin cannot be imported or added; the cause is kept.
        """
        for spec in specs:
            with self._lock:
                if is_path(spec):
                    path = ((folder or Path.cwd()) / Path(spec).expanduser()).resolve()
                    if not self._holds(path):
                        self._add(import_file(path), str(path), origin)
                elif spec not in self._origins and not self._holds(file_of(spec)):
                    self._add(import_module(spec), spec, origin)

    def load_environment(self) -> None:
        """Add the plugins that `KVRESCUE_PLUGINS` lists, separated by commas."""
        listed = os.environ.get(ENVIRONMENT, "").split(",")
        self.load([spec.strip() for spec in listed if spec.strip()], "environment")

    def describe(self) -> list[PluginInfo]:
        """Every plugin, in the order of loading."""
        entries = self.registry.entries()
        return [
            PluginInfo(
                name=name,
                origin=origin,
                hooks=tuple(hook for hook in HOOKS if self._implementations(hook, name)),
                components={
                    kind: names
                    for kind in KINDS
                    if (
                        names := tuple(
                            entry.name
                            for entry in entries
                            if entry.plugin == name and entry.kind == kind
                        )
                    )
                },
            )
            for name, origin in self._origins.items()
        ]

    def observer(self) -> Callable[[Event], None]:
        """A callable that passes events on to the observer hooks of the plugins present now.

        Raises (when called):
            PluginError: an observer failed; the message names its plugin.
        """
        implementations = {
            event: self._every_implementation(hook) for event, hook in OBSERVER_HOOKS.items()
        }

        def observe(event: Event) -> None:
            for name, implementation in implementations.get(type(event), ()):
                call(implementation, name, event=event)

        return observe

    def eviction_observer(self) -> Callable[[EvictionFired], None] | None:
        """The same for evictions; None when no plugin wants to know of them.

        Raises (when called):
            PluginError: an observer failed; the message names its plugin.
        """
        implementations = self._every_implementation(OBSERVER_HOOKS[EvictionFired])
        if not implementations:
            return None

        def observe(event: EvictionFired) -> None:
            for name, implementation in implementations:
                call(implementation, name, event=event)

        return observe

    def _holds(self, path: Path | None) -> bool:
        """Whether a plugin was imported from that file."""
        return path is not None and any(
            Path(file).resolve() == path
            for plugin in self._plugins.values()
            if isinstance(plugin, ModuleType) and (file := getattr(plugin, "__file__", None))
        )

    def _registered_name(self, plugin: object) -> str:
        if not isinstance(plugin, str):
            for name, known in self._plugins.items():
                if plugin is known or (
                    isinstance(known, _ComponentPlugin) and known.component is plugin
                ):
                    return name
            raise PluginError(f"{plugin!r} is not registered")
        if plugin not in self._origins:
            raise PluginError(f"no plugin {plugin!r}{nearest(plugin, self._origins)}")
        return plugin

    def _former(self, plugin: object) -> str | None:
        """The name of the plugin whose class the same lines of code had defined before."""
        if not isinstance(plugin, _ComponentPlugin):
            return None
        for name, known in self._plugins.items():
            if (
                isinstance(known, _ComponentPlugin)
                and known is not plugin
                and _name_of(known) == _name_of(plugin)
            ):
                return name
        return None

    def _every_implementation(self, hook: str) -> list[tuple[str, pluggy.HookImpl]]:
        """What plugins do for one hook, with their names, in the order of loading."""
        return [
            (name, implementation)
            for name in self._origins
            for implementation in self._implementations(hook, name)
        ]

    def _add(self, plugin: object, name: str, origin: Origin) -> str:
        for known, other in self._plugins.items():
            if other is plugin:
                return known
        if name in self._origins:
            raise PluginError(
                f"a plugin named {name!r} is registered already: pass another name=..."
            )
        check_hooks(plugin, name)
        try:
            self._manager.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._manager.has_plugin(name):
                self._manager.unregister(name=name)
            raise PluginError(f"plugin {name!r} cannot be registered: {error}") from error
        self._origins[name], self._plugins[name] = origin, plugin
        try:
            for hook, kind in REGISTER_HOOKS.items():
                for implementation in self._implementations(hook, name):
                    register = partial(self._register_component, kind, name)
                    call(implementation, name, register=register)
        except PluginError:
            self.unregister(name)
            raise
        return name

    def _register_component(
        self, kind: Kind, plugin: str, name: str, component: type[BaseModel] | str
    ) -> None:
        self.registry.add(kind, name, component, plugin)

    def _implementations(self, hook: str, name: str) -> list[pluggy.HookImpl]:
        """What one plugin does for one hook. Plugins are called one by one, so that the one that
        fails can be named."""
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        return [found for found in caller.get_hookimpls() if found.plugin_name == name]

    def _component_plugin(self, component: type) -> _ComponentPlugin:
        for plugin in self._plugins.values():
            if isinstance(plugin, _ComponentPlugin) and plugin.component is component:
                return plugin
        return _ComponentPlugin(component)

    def _free_name(self, plugin: object) -> str:
        name = wanted = _name_of(plugin)
        count = 1
        while self._plugins.get(name, plugin) is not plugin:
            count += 1
            name = f"{wanted}#{count}"
        return name


class _ComponentPlugin:
    """A component class that was registered by itself."""

    def __init__(self, component: type) -> None:
        for hook, kind in REGISTER_HOOKS.items():
            if issubclass(component, _BASES[kind]):
                self.component = component
                setattr(self, hook, self._register)
                return
        bases = ", ".join(base.__qualname__ for base in _BASES.values())
        raise PluginError(
            f"{component.__qualname__} is a class but no component ({bases}): register an instance "
            "of it, or its module"
        )

    def _register(self, register: hookspecs.Register) -> None:
        kind = getattr(self.component, "kind", "")
        register(kind or self.component.__name__.lower(), self.component)


def _name_of(plugin: object) -> str:
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    if isinstance(plugin, _ComponentPlugin):
        return f"{plugin.component.__module__}.{plugin.component.__qualname__}"
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


# -- the process's own set --------------------------------------------------------------------

_default: Plugins | None = None
_default_lock = threading.RLock()  # a plugin that is being imported may register another one


def default() -> Plugins:
    """The process's plugins: built-ins, `KVRESCUE_PLUGINS`, and what was registered since."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Plugins()
            try:
                _default.load_environment()
            except BaseException:
                _default = None  # so that the next call fails the same way
                raise
        return _default


def register(plugin: object, name: str | None = None) -> str:
    """Add a plugin to the process's own set; see `Plugins.register`."""
    return default().register(plugin, name)


def unregister(plugin: object) -> None:
    """Remove a plugin from the process's own set; see `Plugins.unregister`."""
    default().unregister(plugin)

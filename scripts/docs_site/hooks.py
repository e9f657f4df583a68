"""The hook reference, from the specifications of the hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvrescue import hookspecs
from kvrescue.hookspecs import PROJECT

__all__ = ["hook_specs", "hooks", "signature"]

_HEAD: Final = """\
# Hooks

A plugin is a module, or an object, with functions of these names, marked by `hookimpl`
(`from kvrescue import hookimpl`). A function that begins with `kvrescue_` and is no hook is an
error, so a misspelt one is never silently left out. A hook may take fewer arguments than listed.
Hooks of several plugins are called in the order in which the plugins were loaded, built-ins first.

What a hook raises reaches the caller as a `PluginError` that names the plugin and the hook.
"""

_GUIDES: Final[Mapping[str, str]] = {
    "kvrescue_register_policies": "policy",
    "kvrescue_register_evictors": "evictor",
    "kvrescue_register_detectors": "detector",
    "kvrescue_register_scorers": "scorer",
}
"""The guide with an example, by hook; all others are for observers."""


def hook_specs() -> dict[str, Callable[..., Any]]:
    """Every hook by name, in the order of the module."""
    return {
        name: function
        for name, function in vars(hookspecs).items()
        if inspect.isfunction(function) and hasattr(function, f"{PROJECT}_spec")
    }


def hooks() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for name, function in hook_specs().items():
        guide = _GUIDES.get(name, "observer")
        parts += [
            f"## {name}({', '.join(inspect.signature(function).parameters)})",
            f"```python\n@hookimpl\ndef {name}{signature(function)}: ...\n```",
            inspect.getdoc(function) or "",
            f"Example: [{guide}](../plugins/{guide}.md).",
        ]
    register = hookspecs.Register
    parts += [
        "## register",
        f"```python\ndef register{signature(register.__call__)}: ...\n```",
        inspect.getdoc(register) or "",
        inspect.getdoc(register.__call__) or "",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def signature(function: Callable[..., Any]) -> str:
    """Parameters and result as they are written, `self` left out."""
    found = inspect.signature(function)
    kept = [parameter for name, parameter in found.parameters.items() if name != "self"]
    return str(found.replace(parameters=kept)).replace("'", "")  # annotations are texts

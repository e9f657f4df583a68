"""`kvrescue plugins`: who adds which components, and which options they have."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kvrescue.cli.console import emit_json, human
from kvrescue.cli.failures import SubGroup
from kvrescue.cli.options import Json, PluginList, load_plugins
from kvrescue.errors import UnknownNameError, nearest

__all__ = ["app"]

app = typer.Typer(cls=SubGroup)


@app.callback(invoke_without_command=True)
def plugins(context: typer.Context, plugin: PluginList = None, json: Json = False) -> None:
    """List plugins: their names, where they come from, their hooks and what they add."""
    load_plugins(plugin)
    if context.invoked_subcommand is None:
        _list(json)


@app.command()
def show(
    kind: Annotated[str, typer.Argument(help="policy, evictor, detector or scorer.")],
    name: Annotated[str, typer.Argument(help="The name that a configuration gives as `kind:`.")],
    plugin: PluginList = None,
    json: Json = False,
) -> None:
    """Print the options of one component."""
    from kvrescue import plugins as layer
    from kvrescue.registry import KINDS

    load_plugins(plugin)
    if kind not in KINDS:
        raise UnknownNameError(f"unknown kind of component {kind!r}{nearest(kind, KINDS)}")
    registry = layer.default().registry
    with registry.active():
        component = registry.load(kind, name)
        schema = component.model_json_schema()
    added_by = next(e.plugin for e in registry.entries() if (e.kind, e.name) == (kind, name))
    if json:
        emit_json({"kind": kind, "name": name, "plugin": added_by, "schema": schema})
        return
    console = human()
    console.print(Text.assemble((name, "bold"), f", a {kind} of plugin {added_by}"))
    if schema.get("description"):
        console.print(Text(str(schema["description"])))
    table = Table("option", "type", "default")
    required = schema.get("required", [])
    for option, described in schema.get("properties", {}).items():
        default = "required" if option in required else repr(described.get("default"))
        table.add_row(option, Text(_type(described)), Text(default))
    console.print(table)


def _list(json: bool) -> None:
    from kvrescue import plugins as layer

    described = layer.default().describe()
    if json:
        emit_json(
            [
                {
                    "name": info.name,
                    "origin": info.origin,
                    "hooks": list(info.hooks),
                    "components": {kind: list(names) for kind, names in info.components.items()},
                }
                for info in described
            ]
        )
        return
    table = Table("plugin", "origin", "hooks", "adds")
    for info in described:
        adds = [f"{kind}: {', '.join(names)}" for kind, names in info.components.items()]
        table.add_row(
            Text(info.name), info.origin, Text("\n".join(info.hooks)), Text("\n".join(adds) or "-")
        )
    human().print(table)


def _type(described: dict[str, Any]) -> str:
    """A JSON schema's type in a few words, with its limits."""
    if "anyOf" in described:
        return " or ".join(_type(choice) for choice in described["anyOf"])
    if "enum" in described:
        return ", ".join(map(str, described["enum"]))
    limits = {
        "minimum": ">=",
        "exclusiveMinimum": ">",
        "maximum": "<=",
        "exclusiveMaximum": "<",
    }
    kind = str(described.get("type", "any"))
    return " ".join(
        [kind, *(f"{sign} {described[key]:g}" for key, sign in limits.items() if key in described)]
    )

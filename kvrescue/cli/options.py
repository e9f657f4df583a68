"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = [
    "Config",
    "Json",
    "Overrides",
    "PluginList",
    "Preset",
    "chosen_source",
    "load_plugins",
    "plugin_overrides",
]

DEFAULT_PRESET = "tiny"

Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]
Preset: TypeAlias = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help=f"A shipped preset (default: {DEFAULT_PRESET})."),
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A YAML file instead of a preset.")
]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change one value, for example limits.max_steps=64; may be repeated.",
    ),
]
PluginList: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE|FILE.py",
        help="Load a plugin first; may be repeated.",
    ),
]


def chosen_source(preset: str | None, config: Path | None) -> str | Path:
    """What to load: at most one of the two may be given."""
    if preset is not None and config is not None:
        raise typer.BadParameter("give either --preset or --config, not both")
    return config if config is not None else (preset or DEFAULT_PRESET)


def load_plugins(plugins: Iterable[str] | None) -> None:
    """Add `--plugin`s to the process's own plugins."""
    from kvrescue import plugins as layer

    layer.default().load(plugins or ())


def plugin_overrides(plugins: Iterable[str] | None) -> list[str]:
    """Load `--plugin`s, and name them in an override, so that worker processes load them, too."""
    from kvrescue.plugins import is_path

    listed = list(plugins or ())
    load_plugins(listed)
    absolute = [str(Path(p).expanduser().resolve()) if is_path(p) else p for p in listed]
    return [f"plugins={absolute}"] if absolute else []

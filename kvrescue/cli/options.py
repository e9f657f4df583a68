"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kvrescue.faults import whole_number

__all__ = [
    "Config",
    "Json",
    "Overrides",
    "PluginList",
    "Preset",
    "chosen_source",
    "load_plugins",
    "plugin_overrides",
    "worker_count",
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


def worker_count(given: int | None, *, alone: bool = False) -> int:
    """Processes that share the work: one per core and at most 4, unless something else is said.

    Args:
        given: the option `--workers`.
        alone: whether one process has the machine's one device to itself.

    Raises:
        ConfigError: fewer than one, or too many.
    """
    if given is not None:
        from kvrescue.evaluation.workers import MOST_WORKERS

        return whole_number("workers", given, 1, MOST_WORKERS)
    if alone:
        return 1
    available = getattr(os, "sched_getaffinity", None)
    cores = len(available(0)) if available is not None else os.cpu_count() or 1
    return min(cores, 4)


def plugin_overrides(plugins: Iterable[str] | None) -> list[str]:
    """Load `--plugin`s, and name them in an override, so that worker processes load them, too."""
    from kvrescue.importing import is_path

    listed = list(plugins or ())
    load_plugins(listed)
    absolute = [str(Path(p).expanduser().resolve()) if is_path(p) else p for p in listed]
    return [f"plugins={absolute}"] if absolute else []

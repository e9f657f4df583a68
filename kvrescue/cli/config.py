"""`kvrescue config`: the whole configuration, defaults included."""

from __future__ import annotations

import sys

from kvrescue.cli.console import emit_json
from kvrescue.cli.engines import EngineName, chosen_engine
from kvrescue.cli.options import (
    Config,
    Json,
    Overrides,
    PluginList,
    Preset,
    chosen_source,
    load_plugins,
)

__all__ = ["show_config"]


def show_config(
    preset: Preset = None,
    config: Config = None,
    engine: EngineName = None,
    overrides: Overrides = None,
    plugin: PluginList = None,
    json: Json = False,
) -> None:
    """Print a configuration in full, checked, as YAML that loads to the same run."""
    from kvrescue.config import config_hash, load_config, resolved_yaml

    load_plugins(plugin)
    resolved = load_config(
        chosen_source(preset, config), overrides or (), engine=chosen_engine(engine)
    )
    if json:
        emit_json({"hash": config_hash(resolved), "config": resolved.model_dump(mode="json")})
    else:
        sys.stdout.write(resolved_yaml(resolved))

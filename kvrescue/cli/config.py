"""`kvrescue config`: the whole configuration, defaults included."""

from __future__ import annotations

import math
import sys
from typing import Any

from kvrescue.cli.calibrated import CalibrationFile, calibrated
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
    calibration: CalibrationFile = None,
    json: Json = False,
) -> None:
    """Print a configuration in full, checked, as YAML that loads to the same run."""
    from kvrescue.config import config_hash, load_config, resolved_yaml

    load_plugins(plugin)
    resolved = load_config(
        chosen_source(preset, config), overrides or (), engine=chosen_engine(engine)
    )
    head = ""
    if calibration is not None:
        from kvrescue.calibration import provenance
        from kvrescue.evaluation.methods import evictor_of

        resolved, found = calibrated(resolved, calibration)
        lines = provenance(found, found.at(evictor_of(resolved).budget))
        head = "".join(f"# {line}\n" for line in lines)
    if json:
        data = _in_json(resolved.model_dump(mode="json"))
        emit_json({"hash": config_hash(resolved), "config": data})
    else:
        sys.stdout.write(head + resolved_yaml(resolved))


def _in_json(value: Any) -> Any:
    """JSON has no infinities and no NaN: they become texts that a configuration takes for them."""
    if isinstance(value, dict):
        return {key: _in_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

"""Configuration: a YAML file or preset in, checked options out, and back to YAML in full.

Every component section is `{kind: NAME, **options}`; kinds are found in the plugin registry and
options are the fields of the component's own model. A fault names its path and the nearest valid
name, and all faults are told at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

import yaml
from pydantic import BaseModel, Field, ValidationError

from kvrescue import plugins as plugin_layer
from kvrescue import presets
from kvrescue.detectors.base import Detector
from kvrescue.engines import Engine, on_engine, refuse_foreign
from kvrescue.errors import ConfigError, DetectorError, UnknownNameError
from kvrescue.faults import UNKNOWN_NAME, line
from kvrescue.importing import is_path
from kvrescue.options import SECRETS, Options
from kvrescue.overrides import TOO_DEEP, apply_overrides
from kvrescue.plugins import Plugins
from kvrescue.policies.base import PolicySpec, Sampling
from kvrescue.registry import component, validate
from kvrescue.rules import Limits, OnError, WhenAllFlagged
from kvrescue.sampling import MOST_CANDIDATES
from kvrescue.scorers.base import ScorerSpec

__all__ = [
    "ConfigSource",
    "ProposerConfig",
    "RescueConfig",
    "config_data",
    "config_hash",
    "load_config",
    "resolved_yaml",
]

_NO_EFFECT_ON_RESULTS: Final = ("plugins", "concurrency")


class ProposerConfig(Options):
    """One proposer: `{policy: {kind: ...}, candidates: N, detectors: [{kind: ...}, ...]}`."""

    policy: Annotated[PolicySpec, component("policy")]
    """What draws its candidates."""
    candidates: int = Field(default=1, ge=1, le=MOST_CANDIDATES)
    """N: candidates per step."""
    detectors: tuple[Annotated[Detector, component("detector")], ...] = ()
    """What screens its candidates; none means that they are never aborted."""


class RescueConfig(Options):
    """Everything that makes a run."""

    plugins: tuple[str, ...] = ()
    """Modules or Python files to load first; relative paths start at the file's folder."""
    proposers: dict[str, ProposerConfig] = Field(min_length=1)
    """By name; their order breaks ties between equal scores."""
    scorer: Annotated[ScorerSpec, component("scorer")]
    """What ranks the candidates of a step."""
    sampling: Sampling = Sampling()
    """How candidates are drawn, by every proposer."""
    limits: Limits = Limits()
    """Where a trajectory ends at the latest."""
    seed: int = 0
    """Of the run: together with question, round, proposer and index it seeds each candidate."""
    stop_at_answer: bool = False
    """End at the first committed step with a closed `\\boxed{...}`."""
    when_all_flagged: WhenAllFlagged = "stop"
    """When detectors aborted every candidate of a round: end the trajectory, or draw again."""
    on_scorer_error: OnError = "raise"
    """When a score is invalid: end the run, or leave it out and record that."""
    on_policy_error: OnError = "raise"
    """When a proposer fails: end the run, or go on without it and record that."""
    concurrency: int = Field(default=32, ge=1)
    """Problems in flight at once."""


ConfigSource: TypeAlias = RescueConfig | Mapping[str, Any] | str | PathLike[str]
"""A configuration, its data, the path of a YAML file, or the name of a preset."""


def load_config(
    source: ConfigSource,
    overrides: Iterable[str] = (),
    *,
    engine: Engine | None = None,
    plugins: Plugins | None = None,
) -> RescueConfig:
    """Read and check a configuration.

    Args:
        source: a preset's name, the path of a YAML file, the data itself, or a configuration.
        overrides: assignments such as "proposers.base.policy.evictor.budget=32"; the value is
            YAML, and a component of a list is reached by its position or its kind.
        engine: "torch" or "vllm", what the policies run on (see `kvrescue.engines`); None: as
            configured. Overrides are applied after it and name the options of that engine.
        plugins: where component kinds are looked up and `plugins:` is loaded to (default: the
            process's own).

    Raises:
        UnknownNameError: an unknown preset, engine, kind or field.
        ConfigError: the file cannot be read, a value is wrong, or the engine lacks an option.
        PluginError: a listed plugin cannot be loaded.
    """
    known = plugins if plugins is not None else plugin_layer.default()
    data, folder = _read(source)
    if engine is not None:
        # What a configuration was not told is for the engine to choose.
        data = _explicit(source) if isinstance(source, RescueConfig) else data
        data = on_engine(data, engine)
    data = apply_overrides(data, overrides)
    refuse_foreign(data)
    listed = data.get("plugins", ())
    if isinstance(listed, list | tuple) and all(isinstance(spec, str) for spec in listed):
        # Absolute, so that the resolved configuration loads from any folder.
        data["plugins"] = [_absolute(spec, folder) for spec in listed]
        known.load(data["plugins"], "config")
    with known.registry.active():
        try:
            return cast("RescueConfig", validate(RescueConfig, data))
        except ValidationError as error:
            raise _typed(error) from None


def config_data(source: ConfigSource) -> dict[str, Any]:
    """What a source says, not checked, as nested dicts and lists; `plugins` that are relative
    paths are made absolute.

    Raises:
        UnknownNameError: an unknown preset.
        ConfigError: the file cannot be read.
    """
    data, folder = _read(source)
    listed = data.get("plugins")
    if isinstance(listed, list):
        data["plugins"] = [_absolute(s, folder) if isinstance(s, str) else s for s in listed]
    return data


def resolved_yaml(config: RescueConfig) -> str:
    """The whole configuration, defaults included; `load_config` reads back an equal one.

    Keys (`scorer.api_key`) are left out: give them in the environment.
    """
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, width=100)


def config_hash(config: RescueConfig) -> str:
    """16 hex digits that change with every option that may change a result.

    `concurrency` and the list of plugins do not count; the options of plugin components do.
    """
    data = config.model_dump(mode="json", exclude=set(_NO_EFFECT_ON_RESULTS))
    # The order of proposers breaks ties, so it is part of the content.
    text = json.dumps([data, list(data["proposers"])], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _read(source: ConfigSource) -> tuple[dict[str, Any], Path]:
    """The data of a source, and the folder that its relative paths start at."""
    if isinstance(source, RescueConfig):
        return source.model_dump(mode="json", context={SECRETS: True}), Path.cwd()
    if isinstance(source, Mapping):
        return _plain_copy(source, "configuration"), Path.cwd()
    if isinstance(source, str) and not _looks_like_path(source):
        return _parse(presets.read(source), f"preset {source!r}"), Path.cwd()
    path = Path(source).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    return _parse(text, str(path)), path.resolve().parent


def _explicit(value: Any) -> Any:
    """A configuration as data, without what it was not told."""
    if isinstance(value, BaseModel):
        kind = getattr(value, "kind", "")
        told = {name: _explicit(getattr(value, name)) for name in value.model_fields_set}
        return {"kind": kind, **told} if kind else told
    if isinstance(value, Mapping):
        return {key: _explicit(item) for key, item in value.items()}
    return [_explicit(item) for item in value] if isinstance(value, list | tuple) else value


def _looks_like_path(source: str) -> bool:
    if source in presets.names():
        return False
    return source.endswith((".yaml", ".yml")) or "/" in source or os.path.isfile(source)


def _absolute(spec: str, folder: Path) -> str:
    if not is_path(spec):
        return spec
    return str((folder / Path(spec).expanduser()).resolve())


def _plain_copy(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Nested mappings and lists copied, so that overrides never change the caller's data."""

    def copy(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: copy(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [copy(item) for item in value]
        return value

    try:
        return {str(key): copy(value) for key, value in data.items()}
    except RecursionError:
        raise ConfigError(f"{name}: {TOO_DEEP}") from None


# -- YAML -------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Safe loading that refuses a key given twice instead of dropping the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Safe dumping that writes line breaks as \\n (a separator is then readable)."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if "\n" in text else None
    )


_Dumper.add_representer(str, _represent_text)


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}{where}: {error.problem or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: {error}") from error
    except RecursionError:
        raise ConfigError(f"{name}: {TOO_DEEP}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: should be a mapping with `proposers:` and `scorer:`")
    return _plain_copy(data, name)


# -- errors -----------------------------------------------------------------------------------


def _typed(error: ValidationError) -> ConfigError:
    """All faults in one error, one line each: path, reason, value."""
    faults = error.errors(include_url=False)
    text = "\n".join(line(fault) for fault in faults)
    if all(fault["type"] == UNKNOWN_NAME for fault in faults):
        return UnknownNameError(text)
    if all(fault.get("ctx", {}).get("error") == DetectorError.__name__ for fault in faults):
        return DetectorError(text)
    return ConfigError(text)

"""Replays of whole traces: the selection of every trajectory once more, without its models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kvrescue.config import ConfigSource, RescueConfig, config_data, load_config
from kvrescue.errors import KVRescueError, ReplayError, UnknownNameError, located, nearest
from kvrescue.events import Event
from kvrescue.parts import Parts
from kvrescue.pipeline import Rescue, close_parts
from kvrescue.plugins import Plugins
from kvrescue.policies.base import Policy, PolicySpec
from kvrescue.replay.compare import Replayed
from kvrescue.replay.policy import ReplayPolicy
from kvrescue.replay.recording import Recorded, Recording
from kvrescue.replay.scorer import ReplayScorer
from kvrescue.replay.specs import ReplayPolicySpec, ReplayScorerSpec
from kvrescue.scorers.base import Scorer, ScorerSpec
from kvrescue.selector import Observer, Proposer

__all__ = ["replay", "replay_config"]

_MERGED: Final = ("sampling", "limits")
"""Sections of which a configuration may give some fields only."""


def replay(
    trace: str | os.PathLike[str] | Recording,
    config: ConfigSource | None = None,
    overrides: Iterable[str] = (),
    *,
    plugins: Plugins | None = None,
    observers: Sequence[Observer] = (),
) -> Iterator[Replayed]:
    """Run the selection of every trajectory of a trace again, one after the other.

    The rules (candidates, detectors, sampling, limits) are those that were recorded, unless the
    configuration or an override says otherwise.

    Args:
        trace: the path of a trace, or a `Recording`.
        config: what to change: all of a configuration or parts of it. Its policies are left out;
            without a scorer in it, recorded scores are given back.
        overrides: "path=value" assignments; see `load_config`.
        plugins: where kinds are looked up, and whose observer hooks are called (default: the
            process's own).
        observers: called with every event of the replay.

    Raises:
        ReplayError: it does not tell the rules and no configuration does, or something is asked for
            that it does not hold whatever was chosen: more candidates, shorter steps.
        RunError: there is no such file, or it is damaged, or no trace.
        ConfigError: the configuration is wrong (`UnknownNameError`: a kind is not registered; load
            the plugin that the run had).
    """
    recording = trace if isinstance(trace, Recording) else Recording.read(trace)
    path = "recording" if isinstance(trace, Recording) else os.fspath(trace)
    overrides = list(overrides)
    parts = Parts()
    known: list[tuple[Mapping[str, Any], tuple[str, ...], RescueConfig]] = []
    try:
        for recorded in recording.trajectories:
            rules, names = recorded.started.rules, recorded.started.proposers
            found = next((c for r, n, c in known if (r, n) == (rules, names)), None)
            if found is None:
                found = replay_config(recorded, path, config, overrides, plugins=plugins)
                known.append((rules, names, found))
            yield _replayed(recorded, recording.name, found, parts, plugins, observers)
    finally:
        close_parts(parts)


def replay_config(
    recorded: Recorded,
    trace: str,
    config: ConfigSource | None = None,
    overrides: Iterable[str] = (),
    *,
    plugins: Plugins | None = None,
) -> RescueConfig:
    """The configuration that replays a trajectory; see `replay`.

    Args:
        recorded: whose rules it starts from.
        trace: the path that the replayed parts name.
        config: see `replay`.
        overrides: see `replay`.
        plugins: see `replay`.
    """
    data = {key: _copy(value) for key, value in recorded.started.rules.items()}
    given = {} if config is None else config_data(config)
    if not data and "proposers" not in given:
        raise ReplayError(
            f"{recorded.where}: the recording does not tell the rules (candidates, detectors, "
            "limits): give the configuration that it ran with, or record it again",
            question_id=recorded.question.id,
            seed=recorded.seed,
        )
    names = recorded.started.proposers
    sections = data.setdefault("proposers", {name: {} for name in names})
    changed = given.pop("proposers", None)
    for name, section in changed.items() if isinstance(changed, dict) else ():
        if name not in sections:
            raise UnknownNameError(f"no proposer {name!r} was recorded{nearest(name, sections)}")
        if isinstance(section, dict):
            sections[name] |= {key: value for key, value in section.items() if key != "policy"}
    for name, section in sections.items():
        section["policy"] = {"kind": ReplayPolicySpec.kind, "trace": trace, "proposer": name}
    data["scorer"] = {"kind": ReplayScorerSpec.kind, "trace": trace}
    for key in _MERGED:
        part = given.get(key)
        if isinstance(part, dict):
            given[key] = {**data.get(key, {}), **part}
    return load_config(data | given, overrides, plugins=plugins)


def _replayed(
    recorded: Recorded,
    name: str,
    config: RescueConfig,
    parts: Parts,
    plugins: Plugins | None,
    observers: Sequence[Observer],
) -> Replayed:
    alone = Recording([recorded], name)  # the same question and seed may be there twice
    proposers = [
        Proposer(
            _policy(section.policy, alone, parts, f"proposers.{key}.policy"),
            section.candidates,
            section.detectors,
            key,
        )
        for key, section in config.proposers.items()
    ]
    events: list[Event] = []
    error: ReplayError | None = None
    with Rescue(
        proposers,
        _scorer(config.scorer, alone, parts),
        sampling=config.sampling,
        limits=config.limits,
        stop_at_answer=config.stop_at_answer,
        when_all_flagged=config.when_all_flagged,
        on_scorer_error=config.on_scorer_error,
        on_policy_error=config.on_policy_error,
        plugins=plugins,
        observers=observers,
    ) as rescue:
        try:
            events.extend(rescue.stream(recorded.question, recorded.seed))
        except ReplayError as caught:
            if not caught.diverged:  # nor would any other trajectory give what is asked for
                raise
            error = caught
        except KVRescueError as failed:
            raise located(f"{name}: {recorded.where}", failed) from failed.__cause__
    return Replayed(recorded, tuple(events), error)


def _policy(spec: PolicySpec, recording: Recording, parts: Parts, path: str) -> Policy:
    if not isinstance(spec, ReplayPolicySpec):
        return parts.policy(spec, path)
    return ReplayPolicy(
        recording,
        proposer=spec.proposer,
        verdicts=spec.verdicts,
        after_divergence=spec.after_divergence,
    )


def _scorer(spec: ScorerSpec, recording: Recording, parts: Parts) -> Scorer:
    return ReplayScorer(recording) if isinstance(spec, ReplayScorerSpec) else parts.scorer(spec)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value

"""Engines: one configuration on torch or on vLLM.

A configuration names an engine in every proposer's policy (`kind: torch` or `kind: vllm`). Here the
kinds are exchanged in the data, before overrides and checks: what both know carries over, and an
override may name an option of the chosen engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from pydantic import BaseModel

from kvrescue.errors import ConfigError, UnknownNameError, nearest
from kvrescue.policies.base import PolicySpec
from kvrescue.policies.specs import TorchPolicySpec, VLLMPolicySpec

__all__ = ["ENGINES", "Engine", "on_engine", "refuse_foreign"]

Engine: TypeAlias = Literal["torch", "vllm"]
"""What models run on."""
ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)
"""All of them."""

_SPECS: Final[Mapping[str, type[PolicySpec]]] = {
    spec.kind: spec for spec in (TorchPolicySpec, VLLMPolicySpec)
}
_REASONS: Final = {
    "share_prefix": "vLLM shares prefixes by its own prefix caching",
    "graphs": "vLLM captures its own",
    "device": "vLLM runs on the device that it was built for",
    "candidates": "the torch engine promises no memory ahead",
    "kv_cache_bytes": "the torch engine takes memory as it needs it",
    "options": "they are vLLM's own",
}
"""Why the other engine has no such option; one for each that only one of them has."""


def on_engine(data: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Put every proposer whose policy runs on the other engine on `engine`, in place.

    What is said and both engines know stays as it is, such as the evictor and its interval; what is
    not said becomes `engine`'s own default. Policies of further kinds and the scorer are left
    alone, and faults of the data are left for its check.

    Args:
        data: configuration data: nested dicts and lists, or components in their places.
        engine: which.

    Raises:
        UnknownNameError: there is no such engine.
        ConfigError: an option that `engine` lacks is set and not just off, or no proposer runs on
            an engine at all.
    """
    if engine not in ENGINES:
        raise UnknownNameError(f"unknown engine {engine!r}{nearest(str(engine), ENGINES)}")
    proposers = data.get("proposers")
    if not isinstance(proposers, dict):
        return data
    faults: list[str] = []
    kinds: list[str] = []
    for name, given in proposers.items():
        section = _section(given)
        if section is None or "policy" not in section:
            continue
        policy = _policy_section(section["policy"])
        if policy is None:
            continue
        kinds.append(str(policy.get("kind")))
        if policy.get("kind") in _SPECS and policy["kind"] != engine:
            path = f"proposers.{name}.policy"
            proposers[name] = section | {"policy": _exchanged(policy, engine, path, faults)}
    if faults:
        raise ConfigError("\n".join(faults))
    if kinds and not set(kinds) & set(ENGINES):
        raise ConfigError(
            f"engine = {engine!r}: no proposer runs on {' or '.join(ENGINES)}, the policies are of "
            f"kind {', '.join(dict.fromkeys(kinds))}; leave the engine out"
        )
    return data


def _exchanged(
    policy: dict[str, Any], engine: Engine, path: str, faults: list[str]
) -> dict[str, Any]:
    """A policy's section on the other engine; options that it cannot take over go to `faults`."""
    theirs, ours = _SPECS[policy["kind"]].model_fields, _SPECS[engine].model_fields
    changed: dict[str, Any] = {"kind": engine}
    for option, value in policy.items():
        if option == "kind":
            continue
        if option not in theirs or option in ours:  # a misspelt one is told by the check
            changed[option] = value
        # What is off asks nothing of an engine, as what is at its default does.
        elif value is not False and value != theirs[option].get_default(call_default_factory=True):
            faults.append(f"{path}.{option} = {value!r}: {_lacks(engine, option)}")
    return changed


def _lacks(engine: str, option: str) -> str:
    return f"the {engine} engine has no such option ({_REASONS[option]}); leave it out"


def refuse_foreign(data: Mapping[str, Any]) -> None:
    """Tell of options that only the other engine has, with the reason; further faults of the data
    are left for its check.

    Args:
        data: configuration data, with its overrides.

    Raises:
        UnknownNameError: a policy of one engine has an option of the other alone.
    """
    proposers = data.get("proposers")
    faults: list[str] = []
    for name, given in proposers.items() if isinstance(proposers, Mapping) else ():
        policy = _policy_section((_section(given) or {}).get("policy"))
        kind = (policy or {}).get("kind")
        if policy is None or not isinstance(kind, str) or kind not in _SPECS:
            continue
        faults += [
            f"proposers.{name}.policy.{option} = {value!r}: {_lacks(kind, option)}"
            for option, value in policy.items()
            if option in _REASONS and option not in _SPECS[kind].model_fields
        ]
    if faults:
        raise UnknownNameError("\n".join(faults))


def _section(given: object) -> dict[str, Any] | None:
    """A proposer's section as data; None where it is none, which its check will tell."""
    if isinstance(given, BaseModel):
        return {name: getattr(given, name) for name in given.model_fields_set}
    return dict(given) if isinstance(given, Mapping) else None


def _policy_section(given: object) -> dict[str, Any] | None:
    if isinstance(given, str):
        return {"kind": given}
    if isinstance(given, PolicySpec):
        return {"kind": given.kind} | {n: getattr(given, n) for n in given.model_fields_set}
    return cast("dict[str, Any]", dict(given)) if isinstance(given, Mapping) else None

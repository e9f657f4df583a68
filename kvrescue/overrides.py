"""Overrides: `path=value` assignments applied to configuration data before it is checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

from kvrescue.errors import ConfigError, UnknownNameError, nearest

__all__ = ["TOO_DEEP", "apply_overrides", "assigned"]

TOO_DEEP: Final = "nested too deeply, or a part of it contains itself"


def apply_overrides(data: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply assignments in order, in place.

    Options that the data does not mention may be set; whether they exist is found out when the
    result is checked, as for any other option. Proposers and entries of lists must be there.

    Args:
        data: nested dicts and lists.
        overrides: "dotted.path=YAML value"; an entry of a list is reached by its position or, for
            components, by its kind.
    """
    for override in overrides:
        keys, text = assigned(override)
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"override {override!r}: the value is not YAML: {error}") from error
        except RecursionError:
            raise ConfigError(f"override {override[:40]!r}...: {TOO_DEEP}") from None
        _assign(data, keys, value, override)
    return data


def assigned(override: str) -> tuple[list[str], str]:
    """The keys that an assignment leads through, and the text of its value.

    Raises:
        ConfigError: it is no assignment.
    """
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override {override!r} should look like limits.max_steps=64")
    return keys, text


def _assign(data: dict[str, Any], keys: list[str], value: object, override: str) -> None:
    node: Any = data
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        path = ".".join(keys[: depth + 1])
        if isinstance(node, list):
            place = _place(node, key, path, override)
            if last:
                node[place] = value
            else:
                node[place] = node = _opened(node[place])
        elif isinstance(node, dict):
            if keys[:depth] == ["proposers"] and key not in node and not last:
                raise UnknownNameError(
                    f"override {override!r}: no proposer {key!r}{nearest(key, map(str, node))}"
                )
            if last:
                node[key] = value
            else:
                node[key] = node = _opened(node.get(key, {}))
        else:
            above = ".".join(keys[:depth])
            raise ConfigError(f"override {override!r}: {above} is {node!r} and has no {key!r}")


def _opened(node: object) -> object:
    """A component written as a bare name, as the section it stands for; None as an empty one."""
    if isinstance(node, str):
        return {"kind": node}
    return {} if node is None else node


def _place(entries: list[Any], key: str, path: str, override: str) -> int:
    kinds = [entry.get("kind") if isinstance(entry, dict) else entry for entry in entries]
    if key in kinds:
        return kinds.index(key)
    if key.isdecimal() and int(key) < len(entries):
        return int(key)
    valid = [str(kind) for kind in kinds if kind is not None]
    raise UnknownNameError(f"override {override!r}: nothing at {path}{nearest(key, valid)}")

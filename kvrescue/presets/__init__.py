"""Presets: configurations shipped with the package, one YAML file each."""

from __future__ import annotations

from importlib import resources

from kvrescue.errors import UnknownNameError, nearest

__all__ = ["names", "read"]

_SUFFIX = ".yaml"


def names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    files = resources.files(__package__).iterdir()
    found = (file.name for file in files if file.name.endswith(_SUFFIX))
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in found))


def read(name: str) -> str:
    """The YAML text of a preset.

    Raises:
        UnknownNameError: there is none of that name; the message names the nearest.
    """
    known = names()
    if name not in known:
        raise UnknownNameError(f"unknown preset {name!r}{nearest(name, known)}")
    return resources.files(__package__).joinpath(name + _SUFFIX).read_text(encoding="utf-8")

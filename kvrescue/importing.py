"""Importing a plugin by its module's dotted name or by its file's path."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from kvrescue.errors import KVRescueError, PluginError

__all__ = ["file_of", "import_file", "import_module", "is_path"]


def is_path(spec: str) -> bool:
    """Whether a plugin is given as a Python file rather than as a module's name."""
    return spec.endswith(".py") or "/" in spec or os.sep in spec


def import_module(name: str) -> ModuleType:
    """The module of a dotted name.

    Raises:
        PluginError: it is not there, or fails while it is imported; the cause is kept.
    """
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            hint = f" (for a file, give its path: ./{name.replace('.', '/')}.py)"
        raise _import_error(name, error, hint) from error


def file_of(name: str) -> Path | None:
    """The file that the module of a dotted name is in, where that can be told."""
    try:
        spec = importlib.util.find_spec(name)
    except (Exception, SystemExit):  # a package above it fails: importing tells how
        return None
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    return Path(spec.origin).resolve()


def import_file(path: Path) -> ModuleType:
    """The module that an absolute path holds; the same path is imported once.

    Raises:
        PluginError: it is not there or no Python, or fails while it is imported; the cause is kept.
    """
    if not path.is_file():
        raise PluginError(f"plugin {str(path)!r}: there is no such file")
    # One name per path: two plugins of one file name in different folders stay apart.
    digest = hashlib.blake2b(str(path).encode(errors="surrogateescape"), digest_size=4).hexdigest()
    name = f"kvrescue_plugin_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin {str(path)!r} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_error(str(path), error) from error
    return module


def _import_error(name: str, error: BaseException, hint: str = "") -> PluginError:
    reason = str(error) if isinstance(error, KVRescueError) else f"{type(error).__name__}: {error}"
    return PluginError(f"plugin {name!r} cannot be imported: {reason}{hint}")

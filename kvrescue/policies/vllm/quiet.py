"""Quiet: vLLM's log, progress and warnings kept out of the output of our own programs.

For processes that are ours, the command line and its workers; importable without vLLM.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import warnings
from typing import Final

__all__ = ["quiet_vllm", "usable_cache"]

_SETTINGS: Final = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # vLLM's default is stdout, which is ours
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
_FUTURE: Final = "ignore::FutureWarning"
"""What can be said of warnings in the environment, where modules cannot be named by a prefix."""


def quiet_vllm() -> None:
    """Make vLLM tell of errors only, on stderr; what the user has set himself stays.

    To be called before torch is imported. Processes started later inherit the settings, but of
    the filters of Python's warnings only that of FutureWarning: call it there, too.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(ValueError):  # of a level that vLLM will refuse
        # vLLM warns before it has set up its logger.
        logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    if set(sys.warnoptions) <= {_FUTURE}:  # nobody's, or inherited from a process of ours
        os.environ.setdefault("PYTHONWARNINGS", _FUTURE)  # vLLM's ranks call nothing of ours
        warnings.filterwarnings("ignore", module=r"vllm(\.|$)")


def usable_cache() -> str | None:
    """Where vLLM's cache folder cannot be written, give it a temporary one, until we exit.

    vLLM goes on without it, but shows a stack trace for each model.

    Returns:
        What to tell the user; None when all is well.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = os.path.expanduser(os.environ.get("VLLM_CACHE_ROOT") or os.path.join(base, "vllm"))
    try:
        os.makedirs(root, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        told = f"vLLM's cache folder {root!r} cannot be written ({error.strerror or error})"
    else:
        return None
    with contextlib.suppress(OSError):  # no folder for temporary files, either
        folder = tempfile.mkdtemp(prefix="kvrescue-vllm-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["VLLM_CACHE_ROOT"] = folder
    return f"{told}: this run starts without it; set VLLM_CACHE_ROOT"

"""Quiet: vLLM's log, progress and warnings kept out of the output of our own programs.

For processes that are ours, the command line and its workers; importable without vLLM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from typing import Final

__all__ = ["quiet_vllm"]

_SETTINGS: Final = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # vLLM's default is stdout, which is ours
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def quiet_vllm() -> None:
    """Make vLLM tell of errors only, on stderr; what the user has set himself stays.

    To be called before torch is imported. Processes started later inherit the settings, but not
    the filter of Python's warnings: call it there, too.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(ValueError):  # of a level that vLLM will refuse
        # vLLM warns before it has set up its logger.
        logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=r"vllm(\.|$)")

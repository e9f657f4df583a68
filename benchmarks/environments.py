"""Which interpreter runs a member: this one, or that of an environment with vLLM or a peer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from benchmarks.members import Needs

__all__ = ["ROOT", "interpreter", "missing", "variables"]

ROOT: Final = Path(__file__).parents[1]

_PLACES: Final[dict[Needs, tuple[tuple[str, str], ...]]] = {
    "torch": (),
    "vllm": (("PEERS_VENV", ".venv-peers"), ("VLLM_VENV", ".venv-vllm")),
    "its_hub": (("PEERS_VENV", ".venv-peers"),),
}
"""Variables that name an environment's folder, and the folder where they are not set; the first
that is there is taken."""

_TARGETS: Final[dict[Needs, str]] = {"vllm": "vLLM", "its_hub": "vLLM and its-hub"}


def interpreter(needs: Needs) -> str | None:
    """The Python of the environment; None where it is not set up."""
    if needs == "torch":
        return sys.executable
    for variable, folder in _PLACES[needs]:
        python = ROOT / os.environ.get(variable, folder) / "bin" / "python"
        if python.exists():
            return str(python)
    return None


def missing(needs: Needs) -> str:
    """What to do about an environment that is not set up."""
    targets = "make setup-peers or make setup-vllm" if needs == "vllm" else "make setup-peers"
    empty = [f"{v} = {os.environ[v]}" for v, _ in _PLACES[needs] if v in os.environ]
    where = f" ({' and '.join(empty)}: no Python there)" if empty else ""
    return f"needs {_TARGETS[needs]}, which is not set up{where}: {targets}"


def variables(threads: int) -> dict[str, str]:
    """The environment variables of a member's process."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": path,
    }

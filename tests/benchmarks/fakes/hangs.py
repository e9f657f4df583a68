"""Hangs with a child of its own that ignores SIGTERM; both write where they are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.ratios import Ratio, Size

_CHILD = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(0, flush=True); "
    "time.sleep(600)"
)


def ratios(size: Size) -> list[Ratio]:
    child = subprocess.Popen([sys.executable, "-c", _CHILD], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    Path(os.environ["HANGS_TELLS"]).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
    return []

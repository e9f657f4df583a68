from __future__ import annotations

import os
import signal

from benchmarks.ratios import Ratio, Size


def ratios(size: Size) -> list[Ratio]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []

"""What needs triton or numba runs with `make test-kernels`: Triton interpreted, or in processes of
its own."""

from __future__ import annotations

import importlib.util
import os

collect_ignore: list[str] = []
if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore += ["test_rkv.py", "test_moves.py", "test_statistics.py", "test_resources.py"]
    collect_ignore += ["test_gpu.py"]
if importlib.util.find_spec("numba") is None:
    collect_ignore += ["test_tracked.py"]

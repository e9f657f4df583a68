"""Ranks: the processes of tensor parallelism, started and cleared away better than vLLM does."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

from kvrescue.children import deaf_children, quiet_tracker

__all__ = ["clear_away", "ranks_in_order"]

_THREADS: Final = "OMP_NUM_THREADS"
_names: set[str] = set()
"""Of groups whose files in the system may be left."""


@contextlib.contextmanager
def ranks_in_order(count: int) -> Iterator[None]:
    """Ranks started meanwhile ignore Ctrl-C and a closed terminal from the beginning, which reach
    them, too: their parent ends them in order. On a CPU they share its cores. When one fails, or
    the parent is interrupted, they all end at once, where vLLM would wait for what they load.

    Args:
        count: of the ranks; one runs in this process.
    """
    stock, stock_end = WorkerProc.make_worker_process, MultiprocExecutor._ensure_worker_termination

    def start(*args: Any, **kwargs: Any) -> Any:
        _note(kwargs["distributed_init_method"])
        with deaf_children(), _cores_shared(count):
            return stock(*args, **kwargs)

    if count > 1:
        quiet_tracker()
        WorkerProc.make_worker_process = staticmethod(start)
        MultiprocExecutor._ensure_worker_termination = staticmethod(_end)
    try:
        yield
    finally:
        WorkerProc.make_worker_process = staticmethod(stock)
        MultiprocExecutor._ensure_worker_termination = staticmethod(stock_end)
        _note(os.environ.get("VLLM_DIST_IDENT", ""))  # told by a rank in this process


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


@contextlib.contextmanager
def _cores_shared(count: int) -> Iterator[None]:
    """Each rank computes with its share of the cores, unless somebody has said otherwise."""
    if _THREADS in os.environ or not current_platform.is_cpu():
        yield
        return
    os.environ[_THREADS] = str(max(1, len(os.sched_getaffinity(0)) // count))
    try:
        yield
    finally:
        del os.environ[_THREADS]


def clear_away() -> None:
    """Remove the files by which ranks found each other and shared memory; vLLM leaves them where a
    rank was killed. To be called when no engine is left."""
    while _names:
        name = _names.pop()
        for folder in (tempfile.gettempdir(), "/dev/shm"):
            for file in Path(folder).glob(f"{name}*"):
                with contextlib.suppress(OSError):
                    file.unlink()


def _note(place: str) -> None:
    """Note where ranks meet, if that is a file; its name begins those of the shared memory."""
    name = Path(place).name
    if name.startswith("vllm_dist_"):  # else it is a port, and some other program's file
        _names.add(name)

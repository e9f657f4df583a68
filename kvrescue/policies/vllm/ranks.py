"""Ranks: the processes of tensor parallelism, started and cleared away better than vLLM does."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

from kvrescue.children import deaf_children, forget_child, quiet_tracker
from kvrescue.policies.vllm.lifeline import Lifeline
from kvrescue.policies.vllm.process import OMP_NUM_THREADS, told

__all__ = ["Meeting", "Ranks"]

_MEETS: Final = "VLLM_DIST_IDENT"
_SOCKETS: Final = "VLLM_RPC_BASE_PATH"
_LONGEST: Final = 107 - len("/01234567-0123-0123-0123-0123456789ab")
"""Bytes of a folder in which sockets can have vLLM's names."""


class Meeting:
    """Where ranks met: files by which they found each other, and the memory that they share. vLLM
    leaves these where a rank was killed."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def note(self, place: str) -> None:
        name = Path(place).name
        if name.startswith("vllm_dist_"):  # else it is a port, and some other program's file
            self._names.add(name)

    def forget(self) -> None:
        self._names.clear()

    def clear_away(self) -> None:
        """To be called when the ranks have ended."""
        while self._names:
            name = self._names.pop()  # it begins those of the shared memory
            for folder in (tempfile.gettempdir(), "/dev/shm"):
                for file in Path(folder).glob(f"{name}*"):
                    with contextlib.suppress(OSError):
                        file.unlink()


class Ranks:
    """Of one engine.

    Args:
        count: of the ranks; one runs in this process.
        here: where ranks in this process meet; their group is that of all engines.
    """

    def __init__(self, count: int, here: Meeting) -> None:
        self._count = count
        self._here = here
        self._own = Meeting()
        self._processes: list[BaseProcess] = []
        self._lifeline: Lifeline | None = None
        self._folder: str | None = None
        self.at_once = True
        """Whether to end without a word: while they load, they would not hear it."""
        self._before: str | None = None

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """While the engine starts. Its ranks ignore Ctrl-C and a closed terminal from the
        beginning, which reach them, too: their parent ends them in order. On a CPU they share its
        cores. When one fails, or the parent is interrupted, they all end `at_once`, where vLLM
        would wait for what they load.
        """
        self._before = os.environ.get(_MEETS)
        if self._count == 1:
            yield
            return
        stock, stock_end = _methods()
        quiet_tracker()

        def start(*args: Any, **kwargs: Any) -> Any:
            self._own.note(kwargs["distributed_init_method"])
            with deaf_children(), _cores_shared(self._count):
                handle = stock(*args, **kwargs)
                self._processes.append(handle.proc)
                return handle

        def end(processes: Sequence[BaseProcess]) -> None:
            (_end if self.at_once else stock_end)(processes)

        with told(self._where()):
            _replace(start, end)
            try:
                yield
            finally:
                _replace(stock, stock_end)

    def note_here(self) -> None:
        """Where a rank of this process met the others, if it got so far."""
        if (now := os.environ.get(_MEETS)) != self._before:
            self._here.note(now or "")

    def _where(self) -> dict[str, str]:
        """A folder of their own for the lifeline and the sockets of ranks, which vLLM would leave
        in that of temporary files."""
        self._folder = tempfile.mkdtemp(prefix="kvrescue-")
        self._lifeline = Lifeline(self._folder)
        if _SOCKETS in os.environ or len(os.fsencode(self._folder)) > _LONGEST:
            return self._lifeline.variables
        return self._lifeline.variables | {_SOCKETS: self._folder}

    def let_go(self) -> None:
        """In a fork: the ranks end with their parent, whether the fork ends before or after it."""
        for process in self._processes:
            forget_child(process)
        if self._lifeline is not None:
            self._lifeline.close()

    def end(self) -> None:
        """None of them runs, and nothing of theirs is left, when this returns."""
        _end(self._processes)
        self._own.clear_away()
        if self._lifeline is not None:
            self._lifeline.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _methods() -> tuple[Any, Any]:
    return WorkerProc.make_worker_process, MultiprocExecutor._ensure_worker_termination


def _replace(start: Any, end: Any) -> None:
    WorkerProc.make_worker_process = staticmethod(start)
    MultiprocExecutor._ensure_worker_termination = staticmethod(end)


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


@contextlib.contextmanager
def _cores_shared(count: int) -> Iterator[None]:
    """Each rank computes with its share of the cores, unless somebody has said otherwise."""
    if OMP_NUM_THREADS in os.environ or not current_platform.is_cpu():
        yield
        return
    os.environ[OMP_NUM_THREADS] = str(max(1, len(os.sched_getaffinity(0)) // count))
    try:
        yield
    finally:
        del os.environ[OMP_NUM_THREADS]

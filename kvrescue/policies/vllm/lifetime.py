"""Lives of engines. With each of them vLLM starts, and ends, what is one for the process: its
distributed groups. Here they last as long as any engine does, or its start."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import Any, Final

from vllm.distributed import cleanup_dist_env_and_memory
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

from kvrescue.policies.vllm.alone import alone, in_some_turn
from kvrescue.policies.vllm.process import process_kept, threads_agreed
from kvrescue.policies.vllm.ranks import Meeting, Ranks

__all__ = ["Life"]

_lives: Final[set[Life]] = set()
"""That have begun and not ended; only whoever is `alone` changes it."""
_here: Final = Meeting()


class Life:
    """One engine's, from the start to the end.

    Everything is of this process: a fork has no engines, and ends none.

    Args:
        vllm_config: of the engine, checked.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self._executor: Any = None
        self._core: Any = None
        self._ranks = Ranks(vllm_config.parallel_config.world_size, _here)

    def begin(self) -> LLMEngine:
        """Start the engine; to be called `alone`, once. Whatever it raises, nothing is left of it.

        Raises what vLLM does.
        """
        threads_agreed()
        _lives.add(self)
        llm = LLMEngine.__new__(LLMEngine)
        with process_kept(ranks=self._config.parallel_config.world_size), self._ranks.in_order():
            try:
                self._start(llm)
            except BaseException as error:
                self._ranks.at_once |= not isinstance(error, Exception)
                with contextlib.suppress(Exception):  # of what is half built
                    self.end()
                raise
        return llm

    def _start(self, llm: LLMEngine) -> None:
        executor = Executor.get_class(self._config)

        def create(config: Any) -> Any:
            self._executor = executor.__new__(executor)  # there, if its own start fails
            executor.__init__(self._executor, config)
            self._ranks.at_once = False
            return self._executor

        try:
            LLMEngine.__init__(llm, self._config, create, log_stats=False, multiprocess_mode=False)
        finally:
            self._ranks.note_here()
            client = getattr(llm, "engine_core", None)
            self._core = getattr(client, "engine_core", None)
            for owner in (client, self._executor):  # they would end more than is theirs
                if (finalizer := getattr(owner, "_finalizer", None)) is not None:
                    finalizer.detach()

    def end(self) -> None:
        """End the engine, if it has not ended; to be called `alone`."""
        if self not in _lives:
            return
        core, executor, self._core, self._executor = self._core, self._executor, None, None
        try:
            if core is not None:
                core.structured_output_manager.clear_backend()
                core.scheduler.shutdown()
            if executor is not None:
                executor.shutdown()
        finally:
            self._ranks.end()
            _lives.discard(self)
            if not _lives:
                cleanup_dist_env_and_memory()
                _here.clear_away()

    def drop(self) -> None:
        """End the engine soon; may be called from anywhere."""
        if self in _lives:
            in_some_turn(self.end)


@atexit.register
def _end_all() -> None:
    if _lives:
        with alone():
            for life in list(_lives):
                life.end()


os.register_at_fork(after_in_child=_lives.clear)

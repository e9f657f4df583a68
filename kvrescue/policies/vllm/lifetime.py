"""Lives of engines. With each of them vLLM starts, and ends, what is one for the process: its
distributed groups. Here they last as long as any engine does, or its start."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import Any, Final

import torch
from vllm import envs
from vllm.distributed import cleanup_dist_env_and_memory, destroy_model_parallel
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

from kvrescue.policies.vllm.alone import alone, in_some_turn
from kvrescue.policies.vllm.process import heap_kept, process_kept, threads_agreed
from kvrescue.policies.vllm.ranks import Meeting, Ranks

__all__ = ["Life"]

_lives: Final[set[Life]] = set()
"""That have begun and not ended; only whoever is `alone` changes it."""


class _Here:
    """The distributed groups of this process, in which all ranks are that run in it."""

    def __init__(self) -> None:
        self.meeting: Final = Meeting()
        self._used = self._owned = False

    def begin(self) -> None:
        """Before an engine of one rank starts."""
        if not self._used:
            self._used, self._owned = True, not torch.distributed.is_initialized()

    def end(self) -> None:
        """When no engine is left."""
        if self._owned:
            cleanup_dist_env_and_memory()
        elif self._used:  # the program's own group stays
            destroy_model_parallel()
        self._used = self._owned = False
        self.meeting.clear_away()


_here: Final = _Here()


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
        self._count: int = vllm_config.parallel_config.world_size
        self.ranks: Final = Ranks(self._count, _here.meeting)

    def begin(self) -> LLMEngine:
        """Start the engine; to be called `alone`, once. Whatever it raises, nothing is left of it.

        Raises what vLLM does.
        """
        threads_agreed()
        llm = LLMEngine.__new__(LLMEngine)
        with process_kept(ranks=self._count), heap_kept(), self.ranks.in_order():
            try:
                _lives.add(self)
                self._start(llm)
            except BaseException as error:
                self.ranks.at_once |= not isinstance(error, Exception)
                with contextlib.suppress(Exception):  # of what is half built
                    self.end()
                raise
        return llm

    def _start(self, llm: LLMEngine) -> None:
        executor = Executor.get_class(self._config)

        def create(config: Any) -> Any:
            self._executor = executor.__new__(executor)  # there, if its own start fails
            executor.__init__(self._executor, config)
            self.ranks.at_once = False
            return self._executor

        if self._count == 1:
            _here.begin()
        try:
            LLMEngine.__init__(llm, self._config, create, log_stats=False, multiprocess_mode=False)
        finally:
            self.ranks.note_here()
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
        with heap_kept(), contextlib.ExitStack() as parts:  # each ends, whatever others raise
            parts.callback(self._leave)
            parts.callback(self.ranks.end)
            if executor is not None:
                parts.callback(executor.shutdown)
            if core is not None:
                parts.callback(core.scheduler.shutdown)
                parts.callback(core.structured_output_manager.clear_backend)

    def _leave(self) -> None:
        _lives.discard(self)
        if not _lives:
            envs.disable_envs_cache()  # for the next engine
            _here.end()

    def drop(self) -> None:
        """End the engine soon; may be called from anywhere."""
        if self in _lives:
            in_some_turn(self.end)


@atexit.register
def _end_all() -> None:
    def end() -> None:
        with contextlib.ExitStack() as lives:  # each ends, whatever others raise
            for life in _lives:
                lives.callback(life.end)

    if _lives:
        alone(end)


def _forget_all() -> None:
    """In a fork."""
    for life in _lives:
        life.ranks.let_go()
    _lives.clear()
    _here.meeting.forget()


os.register_at_fork(after_in_child=_forget_all)

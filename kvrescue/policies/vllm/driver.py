"""Drivers: an in-process LLMEngine as coroutines; requests of all problems share its steps."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from vllm import SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

from kvrescue.errors import ConfigError, KVRescueError, ModelLoadError, PolicyError
from kvrescue.policies.vllm.alone import alone, alone_on_loop
from kvrescue.policies.vllm.lifetime import Life
from kvrescue.policies.vllm.messages import Ticket
from kvrescue.policies.vllm.process import threads_agreed
from kvrescue.policies.vllm.scheduler import DraftScheduler
from kvrescue.sampling import Sampling

__all__ = ["Driver", "EngineDriver"]

T = TypeVar("T")


_TURNS = 12
"""Turns of the event loop from the end of a request to what follows from it: whoever waits scores,
commits and asks for more, coroutine after coroutine."""
_holding: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int] = weakref.WeakKeyDictionary()


async def _hold_still() -> None:
    """Nobody's engine steps on this loop for so long, so that what follows joins the next step."""
    loop = asyncio.get_running_loop()
    _holding[loop] = _holding.get(loop, 0) + 1
    try:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    finally:
        _holding[loop] -= 1


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # nothing is lost if nobody has come to wait: the engine keeps it


_MEMORY = ("memory", "alloc", "cache blocks")
"""Words of what vLLM and torch say when there is not enough of it."""


def _not_started(name: str, config: Any, error: Exception) -> KVRescueError:
    """What vLLM raises when an engine cannot start, as an error of ours with its way out."""
    reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0][:300]
    if "NUMA" in reason:
        return ConfigError(f"{name}: {reason}: set VLLM_CPU_OMP_THREADS_BIND=nobind")
    if any(word in reason for word in _MEMORY):
        cache, scheduler = config.cache_config, config.scheduler_config
        more = "less than requested" in reason or "alloc" in reason
        advice = "lower one of them" if more else "raise kv_cache_bytes, or lower max_context"
        return ConfigError(
            f"{name}: vLLM cannot start with kv_cache_bytes = {cache.kv_cache_memory_bytes}, "
            f"max_context = {config.model_config.max_model_len} and max_live_rows = "
            f"{scheduler.max_num_seqs}: {reason}: {advice}"
        )
    return ModelLoadError(
        f"model = {name!r}: vLLM cannot load it: {reason}; check the checkpoint and `options`"
    )


GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0)


class EngineDriver(abc.ABC, Generic[T]):
    """Runs requests to their end; one background task steps the engine while there are any.

    Subclasses say what a request is and what comes of it.

    Raises ConfigError (memory) and ModelLoadError when the engine cannot start.
    """

    error: ClassVar[type[KVRescueError]] = PolicyError
    """What misuse and failures of vLLM raise."""
    part: ClassVar[str] = "policy"

    def __init__(self, vllm_config: Any, name: str) -> None:
        self.name = name
        self._life = Life(vllm_config)
        # Not at exit, when it could not wait for its turn.
        weakref.finalize(self, self._life.drop).atexit = False
        try:
            self.llm: Any = alone(self._life.begin)
        except KVRescueError:
            raise
        except Exception as error:
            raise _not_started(name, vllm_config, error) from error
        self.scheduler: Any = self.llm.engine_core.engine_core.scheduler
        self.steps = 0
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[T]] = {}
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broken: Exception | None = None

    @abc.abstractmethod
    def _finish(self, output: Any, done: asyncio.Future[T]) -> None:
        """A request ended by itself: set what its future gives. Nobody waits if that is done."""

    def _forget(self, name: str) -> None:
        """A request was stopped."""

    def new_name(self) -> str:
        """A name that no other request or state of this engine has."""
        return f"kvr{next(self._numbers)}"

    def abort(self, names: Sequence[str]) -> None:
        """Stop requests at once; their blocks are free when this returns."""
        alive = [name for name in names if name in self._waiting]
        if alive:
            with self._whole():
                self.llm.abort_request(alive)
        for name in alive:
            done = self._waiting.pop(name)
            self._forget(name)
            if not done.get_loop().is_closed():
                done.cancel()

    def shutdown(self) -> None:
        """Stop the engine and fail those who wait; idempotent."""
        self._close()
        alone(self._life.end)

    async def aclose(self) -> None:
        """`shutdown`, while the event loop goes on."""
        self._close()
        await alone_on_loop(self._life.end)

    def _close(self) -> None:
        if self.llm is not None:
            self._fail(self.error(f"{self.name} is closed"))
            self.llm = None

    def _queue(self, name: str, tokens: Sequence[int], params: Any) -> asyncio.Future[T]:
        """Give a request to the engine; to be called after `_start`."""
        prompt = TokensPrompt(prompt_token_ids=list(tokens))
        with self._whole():
            self.llm.add_request(name, prompt, params)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[name] = done
        return done

    # -- driving --------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._broken is not None:
            raise self._broken
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            self._run(loop)
        elif loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                raise self.error(
                    f"{self.name} is at work on another event loop; use one Rescue (or one loop) "
                    "per engine at a time"
                )
            self.abort(list(self._waiting))  # the old loop died in the middle of its work
            self._run(loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task = loop.create_task(self._drive(), name=f"vLLM engine {self.name}")

    async def _drive(self) -> None:
        try:
            await self._drive_to_the_end()
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):  # between two steps
                self._fail(self._typed(error))
            if not isinstance(error, Exception):
                raise

    async def _drive_to_the_end(self) -> None:
        await _hold_still()  # let everybody who wants work queue it first: it runs as a batch
        while self._waiting:
            outputs = await alone_on_loop(self._step)
            ended = [o for o in outputs if o.finished and o.request_id in self._waiting]
            for output in ended:
                self._finish(output, self._waiting.pop(output.request_id))
            await (_hold_still() if ended else asyncio.sleep(0))
            while _holding.get(asyncio.get_running_loop()):  # noqa: ASYNC110 - turns are waited for
                await asyncio.sleep(0)

    def _step(self) -> Sequence[Any]:
        if not self._waiting:  # it was closed, or all was aborted, before it had its turn
            return ()
        threads_agreed()
        outputs: Sequence[Any] = self.llm.step()
        self.steps += 1
        return outputs

    def _typed(self, error: BaseException) -> KVRescueError:
        """What vLLM raises by itself, out of memory or a dead worker, as an error of ours."""
        if isinstance(error, KVRescueError):
            return error
        reason = (str(error).splitlines() or [""])[0][:300]
        why = f"{type(error).__name__}: {reason}".removesuffix(": ")
        typed = self.error(
            f"{self.name}: vLLM failed ({why}) and cannot go on; build the {self.part} anew"
        )
        typed.__cause__ = error
        return typed

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Ctrl-C in the middle of it fails the engine; errors of vLLM's come before it begins."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                self._fail(self._typed(error))
            raise

    def _fail(self, error: Exception) -> None:
        """A step that failed leaves vLLM's state undefined: the engine is not used again."""
        self._broken = error
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            with contextlib.suppress(RuntimeError):  # its loop was closed
                done.get_loop().call_soon_threadsafe(_fail, done, error)


class Driver(EngineDriver[None]):
    """Drives a policy's engine: a request is a ticket, and its future gives nothing."""

    def __init__(self, vllm_config: Any, name: str) -> None:
        super().__init__(vllm_config, name)
        if not isinstance(self.scheduler, DraftScheduler):
            raise PolicyError(f"{name}: vLLM did not use kvrescue's scheduler")
        self._tickets: dict[str, Ticket] = {}

    def submit(
        self,
        tokens: Sequence[int],
        ticket: Ticket,
        *,
        sampling: Sampling = GREEDY,
        seed: int | None = None,
        max_tokens: int = 1,
    ) -> asyncio.Future[None]:
        """Queue a request; the future resolves when it has ended by itself."""
        self._start()
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed,
            max_tokens=max_tokens,
            ignore_eos=True,  # the draft decides
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=ticket.extra_args,
        )
        self.scheduler.expect(ticket)
        try:
            done = self._queue(ticket.name, tokens, params)
        except BaseException:
            self.scheduler.tickets.pop(ticket.name)
            raise
        self._tickets[ticket.name] = ticket
        return done

    def _forget(self, name: str) -> None:
        del self._tickets[name]
        self.scheduler.tickets.pop(name, None)

    def _finish(self, output: Any, done: asyncio.Future[None]) -> None:
        ticket = self._tickets.pop(output.request_id)
        if done.done():
            return
        if ticket.draft is not None and ticket.draft.error is not None:
            done.set_exception(ticket.draft.error)
        else:
            done.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._tickets.clear()
        super()._fail(error)

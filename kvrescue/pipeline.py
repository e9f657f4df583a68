"""Rescue: the whole thing behind `solve`, its async forms and its streams of events."""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from kvrescue import plugins as plugin_layer
from kvrescue.background import BackgroundLoop, Job, ended, result_of, stop_all
from kvrescue.config import ConfigSource, RescueConfig, load_config
from kvrescue.engines import Engine
from kvrescue.errors import ConfigError, KVRescueError
from kvrescue.events import Event
from kvrescue.faults import whole_number
from kvrescue.parts import Parts
from kvrescue.plugins import Plugins
from kvrescue.policies.base import Sampling
from kvrescue.questions import as_question
from kvrescue.rules import Limits, OnError, WhenAllFlagged
from kvrescue.scorers.base import Scorer
from kvrescue.selector import EvictionObserver, Observer, Proposer, StepwiseSelector
from kvrescue.types import Question, Solution
from kvrescue.waiting import next_of, value_of

__all__ = ["Rescue", "close_parts"]

T = TypeVar("T")

_NO_MORE: Final = object()


class Rescue:
    """Solves questions by stepwise composition of policies.

    Everything runs on one background event loop, so an instance may be used from several threads,
    from coroutines of other loops and inside a notebook alike. Use it as a context manager, or
    call `close`.

    Args:
        proposers: see `Proposer`; their order breaks ties.
        scorer: ranks the candidates of a step.
        sampling: how candidates are drawn.
        limits: where a trajectory ends at the latest.
        seed: of the run; each call may give its own.
        stop_at_answer: see `StepwiseSelector`, as for the next three.
        when_all_flagged: "stop" or "redraw".
        on_scorer_error: "raise" or "degrade".
        on_policy_error: "raise" or "degrade".
        concurrency: problems in flight at once; further ones wait.
        plugins: whose observer hooks are called (default: the process's own plugins).
        observers: called with every event, on the background loop.
        eviction_observers: called with every `EvictionFired`; see `StepwiseSelector`.

    Policies and scorers that are passed in stay the caller's: they may serve several `Rescue`s,
    and `close` leaves them alone. Those that `from_config` builds are closed with it.

    Raises:
        ConfigError: a part is missing, doubled or out of range.
        DetectorError: a detector that can never fire.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        scorer: Scorer,
        *,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int = 0,
        stop_at_answer: bool = False,
        when_all_flagged: WhenAllFlagged = "stop",
        on_scorer_error: OnError = "raise",
        on_policy_error: OnError = "raise",
        concurrency: int = 32,
        plugins: Plugins | None = None,
        observers: Sequence[Observer] = (),
        eviction_observers: Sequence[EvictionObserver] = (),
    ) -> None:
        concurrency = whole_number("concurrency", concurrency, least=1)
        known = plugins if plugins is not None else plugin_layer.default()
        of_plugins = known.eviction_observer()
        self.selector = StepwiseSelector(
            proposers,
            scorer,
            sampling,
            limits,
            stop_at_answer=stop_at_answer,
            when_all_flagged=when_all_flagged,
            on_scorer_error=on_scorer_error,
            on_policy_error=on_policy_error,
            observers=(known.observer(), *observers),
            eviction_observers=(*([of_plugins] if of_plugins else []), *eviction_observers),
        )
        self.seed = whole_number("seed", seed)
        self.concurrency = concurrency
        self.config: RescueConfig | None = None
        """What `from_config` read, in full."""
        self._owned = Parts()
        self._slots: asyncio.Semaphore | None = None
        self._jobs: set[Job[Any]] = set()
        self._closed = False
        self._loop = BackgroundLoop.lease()
        self._give_back = weakref.finalize(self, BackgroundLoop.give_back, self._loop)
        self._give_back.atexit = False  # the loop has its own exit handler

    @classmethod
    def from_config(
        cls,
        source: ConfigSource,
        overrides: Iterable[str] = (),
        *,
        engine: Engine | None = None,
        plugins: Plugins | None = None,
        observers: Sequence[Observer] = (),
        eviction_observers: Sequence[EvictionObserver] = (),
        parts: Parts | None = None,
    ) -> Self:
        """Build everything from a preset's name, a YAML file, data or a configuration.

        Equal policy sections are built once and shared.

        Args:
            source: see `load_config`.
            overrides: "path=value" assignments; see `load_config`.
            engine: "torch" or "vllm", what the policies run on; None: as configured.
            plugins: see the class.
            observers: see the class.
            eviction_observers: see the class.
            parts: where built policies and scorers are looked up and kept, for several `Rescue`s
                of the same models; they then stay the caller's to close.

        Raises:
            ConfigError: the configuration is wrong (`UnknownNameError`: a name in it).
            ModelLoadError: a checkpoint cannot be loaded.
            DependencyError: a component needs a package that is not installed.
        """
        config = load_config(source, overrides, engine=engine, plugins=plugins)
        own = parts is None
        parts = Parts() if parts is None else parts
        try:
            rescue = cls(
                parts.proposers(config),
                parts.scorer(config.scorer),
                sampling=config.sampling,
                limits=config.limits,
                seed=config.seed,
                stop_at_answer=config.stop_at_answer,
                when_all_flagged=config.when_all_flagged,
                on_scorer_error=config.on_scorer_error,
                on_policy_error=config.on_policy_error,
                concurrency=config.concurrency,
                plugins=plugins,
                observers=observers,
                eviction_observers=eviction_observers,
            )
        except BaseException:
            if own:
                close_parts(parts)
            raise
        rescue.config = config
        if own:
            rescue._owned = parts
        return rescue

    # -- solving ------------------------------------------------------------------------------

    def solve(self, question: Question | str, seed: int | None = None) -> Solution:
        """Solve one question and wait for it.

        On Ctrl-C the trajectory is cancelled and its views are closed before the interrupt goes on.

        Raises:
            InputError: the question is empty or too long.
            KVRescueError: see `StepwiseSelector.run`.
        """
        self._refuse_on_loop("solve")
        return _wait(self._start(self._solve(as_question(question), seed)))

    async def asolve(self, question: Question | str, seed: int | None = None) -> Solution:
        """Solve one question from a coroutine of any event loop."""
        return await result_of(self._start(self._solve(as_question(question), seed)))

    def stream(self, question: Question | str, seed: int | None = None) -> Iterator[Event]:
        """Events of one trajectory as they happen; leaving the loop early cancels it."""
        self._refuse_on_loop("stream")
        return self._stream(as_question(question), seed)

    def _stream(self, question: Question, seed: int | None) -> Iterator[Event]:
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        job = self._start(self._pump(question, seed, events.put))
        job.when_done(lambda _: events.put(None))
        try:
            while (event := next_of(events)) is not None:
                yield event
            _wait(job)
        finally:
            stop_all([job])

    async def astream(
        self, question: Question | str, seed: int | None = None
    ) -> AsyncGenerator[Event]:
        """`stream` for coroutines of any event loop."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | None] = asyncio.Queue()

        def put(event: Event | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        job = self._start(self._pump(as_question(question), seed, put))
        job.when_done(lambda _: put(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await result_of(job)
        finally:
            job.cancel()
            await ended(job)

    def solve_many(
        self,
        questions: Iterable[Question | str],
        seed: int | None = None,
        concurrency: int | None = None,
    ) -> Iterator[Solution]:
        """Solutions of many questions, each as it is finished, whatever the order.

        Questions are taken as they are needed, so the iterable may be long or lazy. The first
        failure is raised after the rest has been cancelled.

        Args:
            questions: what to solve; `Solution.question` tells which is which.
            seed: of the run (default: the instance's).
            concurrency: problems in flight at once, at most the instance's own.
        """
        with closing(self._each("solve_many", questions, seed, concurrency)) as jobs:
            for job, _ in jobs:
                yield _wait(job)

    def solve_each(
        self,
        questions: Iterable[Question | str],
        seed: int | None = None,
        concurrency: int | None = None,
    ) -> Iterator[tuple[Question, Solution | KVRescueError]]:
        """Like `solve_many`, but a question that fails does not end the others.

        Each question comes back with its solution, or with the typed error that it ended in.

        Raises:
            InputError: a text is no question (blank, too long).
        """
        with closing(self._each("solve_each", questions, seed, concurrency)) as jobs:
            for job, question in jobs:
                outcome: Solution | KVRescueError
                try:
                    outcome = _wait(job)
                except KVRescueError as error:
                    outcome = error
                yield question, outcome

    def _each(
        self,
        name: str,
        questions: Iterable[Question | str],
        seed: int | None,
        concurrency: int | None,
    ) -> Generator[tuple[Job[Solution], Question], None, None]:
        """Jobs of the questions, each as it is finished."""
        self._refuse_on_loop(name)
        if isinstance(questions, str):
            raise ConfigError("questions is one text: give a list, or use solve")
        wanted = self.concurrency
        if concurrency is not None:
            wanted = min(whole_number("concurrency", concurrency, least=1), wanted)
        rest = iter(questions)
        flying: dict[Job[Solution], Question] = {}
        landed: queue.SimpleQueue[Job[Solution]] = queue.SimpleQueue()
        try:
            while True:
                while len(flying) < wanted:
                    question = next(rest, _NO_MORE)
                    if question is _NO_MORE:
                        break
                    asked = as_question(cast("Question | str", question))
                    job = self._start(self._solve(asked, seed))
                    flying[job] = asked
                    job.when_done(landed.put)
                if not flying:
                    return
                job = next_of(landed)
                yield job, flying.pop(job)
        finally:
            stop_all(flying)

    # -- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel what is in flight, close what `from_config` built; closing twice is fine."""
        self._refuse_on_loop("close")
        if self._closed:
            return
        self._closed = True
        stop_all(self._jobs)
        owned, self._owned = self._owned, Parts()
        try:
            value_of(self._loop.submit(owned.aclose()).future)
        finally:
            self._give_back()

    async def aclose(self) -> None:
        """`close` without blocking the caller's event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # -- on the background loop ---------------------------------------------------------------

    def _seed(self, seed: int | None) -> int:
        return self.seed if seed is None else whole_number("seed", seed)

    async def _solve(self, question: Question, seed: int | None) -> Solution:
        async with self._slot():
            return await self.selector.run(question, self._seed(seed))

    async def _pump(
        self, question: Question, seed: int | None, put: Callable[[Event], None]
    ) -> None:
        run_seed = self._seed(seed)
        async with self._slot(), aclosing(self.selector.events(question, run_seed)) as events:
            async for event in events:
                put(event)

    def _slot(self) -> asyncio.Semaphore:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.concurrency)
        return self._slots

    # -- between the threads ------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        if self._closed:
            work.close()
            raise KVRescueError("this Rescue is closed: make a new one")
        job = self._loop.submit(work)
        self._jobs.add(job)
        job.when_done(self._jobs.discard)
        return job

    def _refuse_on_loop(self, what: str) -> None:
        if self._loop.is_current_thread:
            raise KVRescueError(
                f"{what} was called on the background loop (by an observer?), where it would wait "
                "for itself for ever: call it from another thread"
            )


def _wait(job: Job[T]) -> T:
    """A job's result; whatever interrupts the waiting cancels the job first."""
    try:
        return value_of(job.future)
    except BaseException:
        stop_all([job])
        raise


def close_parts(parts: Parts) -> None:
    """Close parts that several `Rescue`s shared, and wait for it; a running loop is fine."""
    if not parts:
        return
    loop = BackgroundLoop.lease()
    try:
        value_of(loop.submit(parts.aclose()).future)
    finally:
        BackgroundLoop.give_back(loop)

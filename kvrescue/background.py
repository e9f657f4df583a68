"""The background event loop: engines live on one loop, whoever calls and from wherever.

All `Rescue` objects of a process share it, so that they may share policies, too (a base with and
without a helper, say, on one copy of the weights). It starts with the first lease and ends with
the last one, or at interpreter exit.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from kvrescue.errors import KVRescueError
from kvrescue.tasks import uninterrupted
from kvrescue.waiting import until_done

__all__ = ["BackgroundLoop", "Job", "ended", "result_of", "stop_all"]

T = TypeVar("T")


class Job(Generic[T]):
    """A coroutine at work on the background loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        """Done when the coroutine has ended, its clean-up included."""
        # From now on `future.cancel()` has no effect: only `Job.cancel` stops the work.
        self.future.set_running_or_notify_cancel()
        loop.call_soon_threadsafe(self._start)

    def cancel(self) -> None:
        """Ask the coroutine to stop; `future` is done once it has."""
        if not self.future.done():
            self._loop.call_soon_threadsafe(self._cancel)

    def when_done(self, call: Callable[[Job[T]], object]) -> None:
        """Call `call(job)` once the coroutine has ended (at once, if it has)."""
        self.future.add_done_callback(lambda _: call(self))

    def wait(self) -> None:
        """Block until the coroutine has ended, whatever came of it."""
        until_done(self.future)

    def _start(self) -> None:
        if self._cancelled:
            self._work.close()
            self.future.set_exception(_cancelled())
            return
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._finish)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.future.set_exception(_cancelled())
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())


def _cancelled() -> KVRescueError:
    """Seen only by those who did not cancel the work themselves."""
    return KVRescueError("cancelled: the Rescue was closed while this was in flight")


async def result_of(job: Job[T]) -> T:
    """A job's result, for a coroutine of any loop; cancelling the wait cancels the job first."""
    try:
        return await asyncio.wrap_future(job.future)
    except asyncio.CancelledError:
        job.cancel()
        await ended(job)
        raise


async def ended(job: Job[Any]) -> None:
    """Wait until a job has ended, however often the waiting itself is cancelled."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the waiting loop was closed meanwhile
            loop.call_soon_threadsafe(over.set)

    job.when_done(tell)
    await uninterrupted(over.wait())


def stop_all(jobs: Iterable[Job[Any]]) -> None:
    """Cancel jobs and block until they have ended; not to be called on the background loop."""
    stopping = list(jobs)
    for job in stopping:
        job.cancel()
    for job in stopping:
        job.wait()


class BackgroundLoop:
    """An event loop on a daemon thread of its own."""

    # Re-entrant: garbage collection may give a lease back while one is being taken.
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _shared: ClassVar[BackgroundLoop | None] = None
    _leases: ClassVar[int] = 0

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kvrescue", daemon=True)
        self._thread.start()

    @classmethod
    def lease(cls) -> BackgroundLoop:
        """The process's loop, started when nobody holds it; every lease is given back once."""
        with cls._lock:
            cls._leases += 1  # first, so that a lease collected just now cannot be the last one
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    @classmethod
    def give_back(cls, loop: BackgroundLoop) -> None:
        """End one lease; the last one stops the loop and waits for its thread."""
        with cls._lock:
            if loop is not cls._shared:
                return  # a lease from before a fork
            cls._leases -= 1
            if cls._leases:
                return
            cls._shared = None
        loop.stop()

    def submit(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        """Start a coroutine on the loop, from any thread.

        Raises:
            KVRescueError: the loop has ended, or belongs to the process this one was forked from.
        """
        if not self._thread.is_alive():
            work.close()
            raise KVRescueError("the background loop has ended: make the Rescue in this process")
        return Job(self._loop, work)

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller runs on the loop and so must not wait for it."""
        return threading.current_thread() is self._thread

    def stop(self, timeout: float | None = None) -> None:
        """Cancel what is left, let it clean up, and end the thread."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current_thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while True:
                try:
                    self._loop.run_forever()
                    break
                except (SystemExit, KeyboardInterrupt):
                    # Somebody's component raised it. Its caller gets it; the loop serves others.
                    continue
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


def _after_fork() -> None:
    """A forked child has no loop thread: it starts one of its own when it needs it."""
    BackgroundLoop._lock = threading.RLock()
    BackgroundLoop._shared, BackgroundLoop._leases = None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    """Leave no thread inside native code while the interpreter is torn down."""
    loop = BackgroundLoop._shared
    if loop is not None:
        loop.stop(timeout=5.0)

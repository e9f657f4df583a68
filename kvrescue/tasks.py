"""Structured waiting: several coroutines at once, none left behind on error or cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

__all__ = ["asked_to_stop", "gather", "is_async", "uninterrupted"]

T = TypeVar("T")


def is_async(function: object) -> bool:
    """Whether calling it, a function or an object with `__call__`, does nothing unless awaited."""
    called = (function, getattr(type(function), "__call__", None))  # noqa: B004
    return any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in called)


async def gather(
    coroutines: Mapping[str, Coroutine[Any, Any, T]], *, keep_going: bool
) -> dict[str, T | Exception]:
    """Run all at once; every task has ended when this returns or raises.

    Args:
        coroutines: what to run, by name; the result has the same order.
        keep_going: give failures back as results. Otherwise the first failure cancels the others
            and is raised (the first in order, of several at once).
    """
    tasks = {name: asyncio.ensure_future(coroutine) for name, coroutine in coroutines.items()}
    if not tasks:
        return {}
    try:
        await asyncio.wait(
            tasks.values(),
            return_when=asyncio.ALL_COMPLETED if keep_going else asyncio.FIRST_EXCEPTION,
        )
        failures = [
            error
            for task in tasks.values()
            if task.done() and (error := _failure(task)) is not None
        ]
    finally:
        pending = [task for task in tasks.values() if not task.done()]
        for task in pending:
            task.cancel()
        if pending:
            await uninterrupted(asyncio.wait(pending))
        for task in tasks.values():
            _failure(task)  # looked at, so that asyncio does not report it as overlooked
    for error in failures:
        if not (keep_going and isinstance(error, Exception)):
            raise error
    results: dict[str, T | Exception] = {}
    for name, task in tasks.items():
        error = _failure(task)
        results[name] = error if isinstance(error, Exception) else task.result()
    return results


def asked_to_stop() -> bool:
    """Whether the running task was cancelled by somebody; else a CancelledError comes from within
    and means that a component gave up."""
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end even when the waiting task is cancelled; then pass that on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                break
            cancelled = error
        except BaseException:
            break  # it is the work's own, and raised below
    if cancelled is not None:
        with contextlib.suppress(BaseException):
            task.result()
        raise cancelled
    return task.result()


def _failure(task: asyncio.Future[Any]) -> BaseException | None:
    """What a finished task raised; a cancellation from inside counts as a failure."""
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception()

"""Parts with coroutines: built from whatever the author gives, and run on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from kvrescue.errors import ConfigError, KVRescueError
from kvrescue.testing.laws import Law, broken

__all__ = ["ENDS", "Built", "Loop", "awaited", "building", "checked_seconds"]

T = TypeVar("T")

ENDS: Final = Law(
    "ends",
    "Every call ends within `seconds` (60, unless the check is given another number).",
    "The run waits for ever, and with it every problem in flight.",
    "Give requests a time limit of their own, and wait for nothing that only the caller can do; "
    "`seconds=` allows a slow component more.",
    slow=True,
)


class Loop(Protocol):
    """Runs a coroutine to its end."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


@dataclass(frozen=True)
class Built:
    """A part and who it belongs to: what the kit built the kit closes."""

    part: Any
    name: str
    owned: bool
    again: Callable[[], Coroutine[Any, Any, Any]] | None = None
    """Builds another one; None where a part was given."""


@contextlib.contextmanager
def building(
    given: Any, base: type[Any], spec: type[Any], what: str
) -> Iterator[tuple[Built, Loop]]:
    """The part that was given, or what the factory or spec makes, with a loop to run it on.

    Args:
        given: an instance of `base`, a spec, or a function without arguments that returns a part or
            a coroutine of one.
        base: the interface.
        spec: the interface of its options.
        what: "scorer" or "policy", for errors.

    Raises:
        ConfigError: it is none of these, or a loop is running already.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigError(
            f"check_{what} runs an event loop of its own: call it from a plain function, as in "
            f"`def test_mine(): check_{what}(...)`, not from a coroutine"
        )
    if isinstance(given, type) and issubclass(given, (base, spec)):
        raise ConfigError(
            f"{what} = {given.__name__} is a class; give an instance or a function that makes one, "
            f"as in check_{what}(lambda: {given.__name__}(...))"
        )
    with asyncio.Runner() as runner:

        def run(work: Coroutine[Any, Any, T], /) -> T:
            return runner.run(work)

        yield run(_build(given, base, spec, what)), run


def checked_seconds(seconds: object) -> float:
    """Raises ConfigError unless it is a positive number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigError(f"seconds = {seconds!r}: expected a number above 0")
    return float(seconds)


async def awaited(
    call: Any, what: str, who: str, *, runs: Law, ends: Law, seconds: float, then: str = ""
) -> Any:
    """What a coroutine returns; LawBroken where it is none, or does not end in time.

    Args:
        call: what the method returned.
        what: the method.
        who: the component.
        runs: the law that it is a coroutine.
        ends: the law that it ends.
        seconds: by the clock.
        then: what it was called with, for the text.
    """
    __tracebackhide__ = True
    if not inspect.isawaitable(call):
        broken(
            runs,
            who,
            f"`{what}` is no coroutine: it returned a {type(call).__name__}",
            f"`async def {what}`: make it `async def`",
        )
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except TimeoutError:
        if limit.expired():
            seen = f"`{what}` had not ended after {seconds:g} seconds{then}"
            broken(ends, who, seen, "an end, or an error")
        raise


async def _build(given: Any, base: type[Any], spec: type[Any], what: str) -> Built:
    if isinstance(given, base):
        return Built(given, f"{what} {type(given).__name__!r}", owned=False)
    if not isinstance(given, spec) and not callable(given):
        raise ConfigError(
            f"{what} = {given!r}: expected a kvrescue {base.__name__}, a {spec.__name__}, or a "
            "function without arguments that makes one"
        )
    factory: Callable[[], Any] = given.build if isinstance(given, spec) else given

    async def again() -> Any:
        return (await _build(given, base, spec, what)).part

    try:
        part = factory()
        if inspect.isawaitable(part):
            part = await part
    except KVRescueError:
        raise
    except TypeError as error:
        raise ConfigError(f"the {what} cannot be built: {error}") from error
    if isinstance(part, spec):
        part = part.build()
    if not isinstance(part, base):
        raise ConfigError(f"the function made {part!r}: expected a kvrescue {base.__name__}")
    return Built(part, f"{what} {type(part).__name__!r}", owned=True, again=again)

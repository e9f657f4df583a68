"""How much an object holds: what can be reached from it, counted."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import types
from collections import deque
from typing import Any, Final

from kvrescue.testing.fakes import Record

__all__ = ["held"]

MOST: Final = 300_000
"""Objects; what holds more (a model in memory) is not counted."""

_ELSEWHERE = (
    type,
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    types.BuiltinFunctionType,
    asyncio.AbstractEventLoop,
    asyncio.Future,
    threading.Thread,
    Record,
)
"""What belongs to the process, not to the object; and logs that grow on purpose."""
_LEAVES = (str, bytes, int, float, complex, types.NoneType)
_CONTAINERS = (dict, list, set, deque, functools._lru_cache_wrapper)


def held(thing: object) -> int | None:
    """Objects that can be reached from `thing` or from containers of its classes, each once.

    None where there are too many to count.
    """
    stack: list[Any] = [thing]
    for cls in type(thing).__mro__:
        stack += [value for value in vars(cls).values() if isinstance(value, _CONTAINERS)]
    seen: set[int] = set()
    while stack:
        found = stack.pop()
        if id(found) in seen or isinstance(found, _ELSEWHERE):
            continue
        seen.add(id(found))
        if len(seen) > MOST:
            return None
        if isinstance(found, types.FunctionType):  # its globals are the module's
            stack += found.__closure__ or ()
            stack += found.__defaults__ or ()
        elif not isinstance(found, _LEAVES):
            stack += gc.get_referents(found)
    return len(seen)

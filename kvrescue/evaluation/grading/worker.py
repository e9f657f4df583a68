"""What a worker process runs: it reads calls from a socket, and answers each with a verdict.

It ends when the socket closes, which it does when the parent ends, however that happens; where it
is stuck at that moment, when its processor time is used up. Memory is limited for good. It imports
no more than the rules need.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from io import BufferedRWPair
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["main"]


def main(descriptor: int, memory_bytes: int, rules: list[str]) -> None:
    """Serve calls until the socket closes.

    Args:
        descriptor: of the socket.
        memory_bytes: the most address space this process may have.
        rules: functions as `module:name`, imported and called once before the first call.
    """
    # What libraries have to say of an answer is nobody's business, and may be much.
    warnings.simplefilter("ignore")
    logging.disable()
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_AS", memory_bytes)
    with (
        contextlib.suppress(OSError),  # the parent is gone
        socket.socket(fileno=descriptor) as connection,
        connection.makefile("rwb") as stream,
    ):
        _serve(stream, rules)
    os._exit(0)  # nothing here is worth the time that tidying takes


def _serve(stream: BufferedRWPair, rules: list[str]) -> None:
    try:
        functions = {rule: _function(rule) for rule in rules}
        for function in functions.values():
            _warm(function)
    except Exception as error:
        _answer(stream, {"failed": f"{type(error).__name__}: {error}"})
        return
    _answer(stream, {"ready": True})
    for line in stream:
        call = json.loads(line)
        with _limited(call["seconds"]):
            reply = _verdict(functions[call["rule"]], call["answer"], call["gold"])
        _answer(stream, reply)


def _function(rule: str) -> Callable[[str, str], bool]:
    module, _, name = rule.partition(":")
    function: Callable[[str, str], bool] = getattr(importlib.import_module(module), name)
    return function


def _warm(function: Callable[[str, str], bool]) -> None:
    """What is slow the first time (tables of the parser) happens before anything is timed."""
    function(r"\frac{x}{2}+1", r"1+0.5x")


def _verdict(function: Callable[[str, str], bool], answer: str, gold: str) -> dict[str, Any]:
    try:
        _seed()
        return {"equal": bool(function(answer, gold))}
    except MemoryError:
        return {"memory": True}
    except Exception as error:  # of any kind: it says something about the answer, not about us
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def _seed() -> None:
    """Sympy tests for zero at random points: verdicts shall not depend on what came before."""
    if "sympy" in sys.modules:
        importlib.import_module("sympy.core.random").seed(0)


def _answer(stream: BufferedRWPair, data: dict[str, Any]) -> None:
    stream.write(json.dumps(data).encode() + b"\n")
    stream.flush()


def _limit(name: str, most: int) -> None:
    if resource is not None:
        with contextlib.suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (most, most))


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """The kernel ends this process after so many seconds of processor time: also inside C code,
    also when the parent is gone, and never because others keep the machine busy."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)

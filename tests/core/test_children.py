"""The parent of deaf children: what somebody sends it meanwhile is heard once, afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvrescue.children import ENDINGS, deaf_children

PROGRAM = """
import asyncio, signal, threading
from kvrescue.children import deaf_children
heard = []
def hear(number, frame=None):
    heard.append(signal.Signals(number).name)
def send(*numbers):
    for number in numbers:
        signal.raise_signal(number)
    assert heard == []
"""


def printed(code: str, expected: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (expected, "")
    return done.stdout


def test_each_is_heard_once() -> None:
    """Whatever one of the handlers raises. What a terminal sends is blocked meanwhile: later."""
    code = """
def raises(number, frame):
    hear(number)
    raise RuntimeError
signal.signal(signal.SIGINT, raises)
signal.signal(signal.SIGHUP, hear)
signal.signal(signal.SIGTERM, hear)
try:
    with deaf_children():
        send(signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
except RuntimeError:
    print(*heard)
assert signal.getsignal(signal.SIGINT) is raises
"""
    assert printed(code) == "SIGTERM SIGHUP SIGINT\n"


def test_an_event_loop_hears_once() -> None:
    """The system tells it of a signal at once, whatever the handlers are."""
    code = """
async def main():
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGUSR1):
        loop.add_signal_handler(number, hear, number)
    with deaf_children():
        send(signal.SIGINT, signal.SIGUSR1)
    await asyncio.sleep(0.1)
    print(*heard)
asyncio.run(main())
"""
    assert printed(code) == "SIGUSR1 SIGINT\n"


def test_what_is_ignored_stays_ignored_and_what_ends_a_process_does() -> None:
    code = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with deaf_children():
    send(signal.SIGHUP)
print("goes on", flush=True)
with deaf_children():
    send(signal.SIGTERM)
    print("till the end", flush=True)
print("never")
"""
    assert printed(code, -signal.SIGTERM) == "goes on\ntill the end\n"


def test_a_thread_leaves_the_handlers_alone() -> None:
    code = """
signal.signal(signal.SIGTERM, hear)
def start():
    with deaf_children():
        inside.append(signal.getsignal(signal.SIGTERM))
inside = []
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(inside == [hear])
"""
    assert printed(code) == "True\n"


def test_a_handler_that_is_not_of_python_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could put it back."""
    changed: list[int] = []
    stock_get, stock_set = signal.getsignal, signal.signal

    def get(number: int) -> object:
        return None if number == signal.SIGTERM else stock_get(number)

    def change(number: int, handler: signal.Handlers) -> object:
        changed.append(number)
        return stock_set(number, handler)

    monkeypatch.setattr(signal, "getsignal", get)
    monkeypatch.setattr(signal, "signal", change)
    with deaf_children():
        pass
    assert set(changed) == ENDINGS - {signal.SIGTERM}

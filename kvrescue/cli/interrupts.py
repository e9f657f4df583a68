"""Interruptions: Ctrl-C, SIGTERM and a closed terminal (SIGHUP) end a command soon, cleanly, and
never without a word."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

__all__ = ["HUNG_UP", "INTERRUPTED", "TERMINATED", "Interruption"]

HUNG_UP: Final = 129
INTERRUPTED: Final = 130
TERMINATED: Final = 143

_CODES: Final = {"SIGINT": INTERRUPTED, "SIGTERM": TERMINATED, "SIGHUP": HUNG_UP}
"""By the names of signals, one of which is not everywhere."""

_SOON: Final = 0.05
"""Seconds until an interruption that was swallowed is repeated."""


class _CtrlC(KeyboardInterrupt):
    """A KeyboardInterrupt that is over once it is caught.

    After a plain one that has passed through `exec` of a text (dataclasses are made so), CPython
    ends the process by SIGINT at last, whatever its exit code (Py_RunMain, run_eval_code_obj).
    """


class Interruption:
    """What interrupts a command; a context manager around it.

    The first signal is told on stderr at once, because the way out may take seconds, and raises
    KeyboardInterrupt or SystemExit in the main thread. A second one ends the process on the spot.
    What is raised within a `__del__` or a callback goes nowhere: it is raised again a moment later.

    Somebody else's handlers, and a call outside the main thread, where there can be none, are left
    alone.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        """The exit code, once a signal has come."""
        self._signal = 0
        self._raised: BaseException | None = None
        self._repeat = False
        self._timer: threading.Timer | None = None
        self._ours: list[signal.Signals] = []
        self._hook: Any = None

    @property
    def kind(self) -> str:
        return "Interrupted" if self.code == INTERRUPTED else "Terminated"

    @property
    def message(self) -> str:
        return f"{self.kind.lower()} by {signal.Signals(self._signal).name}"

    def __enter__(self) -> Self:
        for number in (found for found in signal.Signals if found.name in _CODES):
            interrupts = number == signal.SIGINT
            default = signal.default_int_handler if interrupts else signal.SIG_DFL
            if signal.getsignal(number) is default:
                with contextlib.suppress(ValueError):  # not in the main thread
                    signal.signal(number, self._stop)
                    self._ours.append(number)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number in self._ours:
            # Once it is over, a further Ctrl-C has nothing to save.
            usual = number == signal.SIGINT and self.code is None
            signal.signal(number, signal.default_int_handler if usual else signal.SIG_DFL)
        sys.unraisablehook = self._hook
        self._raised = None

    def _stop(self, number: int, _: FrameType | None) -> NoReturn:
        if self.code is None:
            self.code = _CODES[signal.Signals(number).name]
            self._signal = number
            again = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
            line = "\n" * os.isatty(2) + f"stopping{again}\n"
            with contextlib.suppress(OSError):
                os.write(2, line.encode())  # a handler may run in the middle of any other write
        elif not self._repeat:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._repeat = False
        interrupted = self.code == INTERRUPTED
        self._raised = _CtrlC() if interrupted else SystemExit(self.code)
        raise self._raised

    def _unraisable(self, found: Any) -> None:
        if self._raised is None or found.exc_value is not self._raised:
            self._hook(found)
            return
        self._timer = threading.Timer(_SOON, self._raise_again)
        self._timer.daemon = True
        self._timer.start()

    def _raise_again(self) -> None:
        self._repeat = True
        main = threading.main_thread().ident
        if main is not None:  # a signal, because that ends the main thread's waiting, too
            signal.pthread_kill(main, self._signal)

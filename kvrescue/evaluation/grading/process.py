"""RuleProcess: a worker process, seen from its parent.

A plain subprocess rather than one of multiprocessing: those run the parent's main module again
before they work, so a script without `if __name__ == "__main__"` would break, and one that builds
models would build them in every worker. Pools on top of multiprocessing (pebble, say) inherit that.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvrescue.errors import KVRescueError
from kvrescue.evaluation.grading.grade import TroubleKind

__all__ = ["GRACE_SECONDS", "PATIENCE", "Reply", "RuleProcess"]

_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from kvrescue.evaluation.grading.worker import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])"
)
_START_SECONDS: Final = 120.0
"""Long: on a busy machine, imports take their time, and nothing is graded meanwhile."""

PATIENCE: Final = 6
GRACE_SECONDS: Final = 10.0
"""By the clock, a call may take so many times its processor time, and so many seconds more: other
programs may have the processor, and a rule that waits for something is the only other reason."""

_SECONDS_TO_END: Final = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A verdict, or why there is none."""

    equal: bool
    trouble: TroubleKind | None = None
    detail: str = ""


class RuleProcess:
    """One worker process. Not for several threads, but for `kill`."""

    def __init__(self, rules: Sequence[str], memory_bytes: int) -> None:
        """Start it; `wait_until_ready` comes before the first call.

        Args:
            rules: functions `(answer, gold) -> bool` as `module:name`.
            memory_bytes: the most address space it may have.
        """
        self.calls = 0
        """How many calls it has answered."""
        self._socket, theirs = socket.socketpair()
        # Sets and dictionaries of symbols shall come in the same order in every run.
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        descriptor = str(theirs.fileno())
        command = [json.dumps(sys.path), descriptor, str(memory_bytes), *rules]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, *command],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                )
        except BaseException:
            self._socket.close()
            raise

    def wait_until_ready(self) -> None:
        """Wait for its imports; it may be killed meanwhile.

        Raises:
            KVRescueError: it does not start.
        """
        try:
            reply = self._receive(time.monotonic() + _START_SECONDS)
        except OSError as error:  # too late, too
            reply = {"failed": f"{type(error).__name__}: {error}"}
        if reply is None or "failed" in reply:
            said = f": {reply['failed']}" if reply else " before it was ready"
            raise KVRescueError(f"a grading process ended{said} (memory_mb may be too small)")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def call(self, rule: str, answer: str, gold: str, seconds: float) -> Reply:
        """Apply a rule. After a time-out, too much memory or an end, the process is gone.

        Args:
            rule: one of those given at the start.
            answer: as extracted from the box.
            gold: the right answer.
            seconds: of processor time that it may take; by the clock more, for a busy machine
                shall not change verdicts.
        """
        patience = PATIENCE * seconds + GRACE_SECONDS
        deadline = time.monotonic() + patience
        call = {"rule": rule, "answer": answer, "gold": gold, "seconds": seconds}
        try:
            self._socket.settimeout(patience)
            self._socket.sendall(json.dumps(call).encode() + b"\n")
            reply = self._receive(deadline)
        except TimeoutError:
            self.close()
            return Reply(
                False, TroubleKind.TIMEOUT, f"no verdict after {patience:g} s by the clock"
            )
        except OSError:
            reply = None
        if reply is None:
            code = self.close(_SECONDS_TO_END)
            if code == -signal.SIGPROF:
                return Reply(
                    False, TroubleKind.TIMEOUT, f"no verdict after {seconds:g} s of processor time"
                )
            return Reply(False, TroubleKind.DIED, f"the grading process ended with code {code}")
        self.calls += 1
        if "memory" in reply:
            self.close()
            return Reply(False, TroubleKind.MEMORY, "more memory was asked for than is allowed")
        if "error" in reply:
            return Reply(False, TroubleKind.ERROR, str(reply["error"]))
        return Reply(bool(reply["equal"]))

    def kill(self) -> None:
        """End it at once, from any thread; `close` must still be called."""
        self._process.kill()

    def close(self, seconds: float = 0.0) -> int:
        """End it, if it has not ended by itself after some seconds; returns its exit code."""
        with contextlib.suppress(OSError):
            self._socket.close()
        if seconds:  # its socket may close before it is quite gone
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(seconds)
        self._process.kill()
        return self._process.wait()

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """The next reply, or None when the process has ended.

        Raises:
            TimeoutError: it did not come in time.
        """
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            piece = self._socket.recv(1 << 16)
            if not piece:
                return None
            line += piece
        reply: dict[str, Any] = json.loads(line)
        return reply

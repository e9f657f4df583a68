"""Typed errors: every failure that a user can cause or must know of has a class here.

Each message names the field, the value and the way out. `exit_code` is what the command line
returns for that class, so scripts can tell a typo from a broken checkpoint.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Final, TypeVar

__all__ = [
    "COMPONENT_FAILURES",
    "AuditError",
    "CalibrationError",
    "CapacityError",
    "ConfigError",
    "DependencyError",
    "DetectorError",
    "EvictorError",
    "InputError",
    "KVRescueError",
    "ModelLoadError",
    "NonFiniteLogitsError",
    "PluginError",
    "PolicyError",
    "ReplayError",
    "RunError",
    "ScorerError",
    "UnknownNameError",
    "WorkerError",
    "located",
    "nearest",
]


COMPONENT_FAILURES: Final = (Exception, SystemExit, KeyboardInterrupt)
"""What a component may raise that must reach its caller, and nobody else who shares the loop."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest valid name, else the list of valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid: {', '.join(names)}" if names else ""


class KVRescueError(Exception):
    """Base of all errors raised on purpose by kvrescue."""

    exit_code: ClassVar[int] = 1
    """What the command line returns for this class."""


class InputError(KVRescueError):
    """The question cannot be used: empty, or longer than the context limit."""

    exit_code = 3


class ConfigError(KVRescueError):
    """A configuration value is wrong: the message names the field, the value and the fix."""

    exit_code = 4


class UnknownNameError(ConfigError):
    """An unknown preset, component kind, plugin or field; the message names the nearest."""


class DetectorError(ConfigError):
    """A detector that can never fire on its source, or whose options contradict each other."""


class PluginError(KVRescueError):
    """A plugin cannot be imported, misspells a hook or registers a name twice."""

    exit_code = 5


class ModelLoadError(KVRescueError):
    """A checkpoint is missing, corrupted, of the wrong shape or of an unsupported family."""

    exit_code = 6


class DependencyError(KVRescueError):
    """An optional package is not installed; the message names the extra that brings it."""

    exit_code = 7


class PolicyError(KVRescueError):
    """A policy failed while it was built, proposed or committed."""

    exit_code = 8


class NonFiniteLogitsError(PolicyError):
    """A model returned NaN or infinite logits."""


class ScorerError(KVRescueError):
    """A scorer failed, or returned the wrong number of scores or one that is not in [0, 1]."""

    exit_code = 9


class AuditError(KVRescueError):
    """An evictor was configured, the sequence outgrew its bound, and it never fired."""

    exit_code = 10


class CapacityError(KVRescueError):
    """More rows or tokens were asked for than the engine may hold."""

    exit_code = 11


class EvictorError(KVRescueError):
    """An evictor failed, or got a malformed `KVSlice`, or returned wrong scores."""

    exit_code = 12


class WorkerError(KVRescueError):
    """A worker process of `demo` or `bench` ended before its work: killed, or out of memory."""

    exit_code = 13


class RunError(KVRescueError):
    """The folder of an evaluation run cannot be used, is damaged, or belongs to another run."""

    exit_code = 14


class CalibrationError(KVRescueError):
    """Recorded traces do not give a threshold, or a calibration was made for something else."""

    exit_code = 15


class ReplayError(KVRescueError):
    """A replay needs what its recording does not hold: another question, seed, choice or score.

    Where it is known, `question_id`, `seed` and `step` (0-based) say where. `diverged` tells
    whether another choice led there; otherwise no choice could give what is asked for.
    """

    exit_code = 16

    def __init__(
        self,
        message: str,
        *,
        question_id: str | None = None,
        seed: int | None = None,
        step: int | None = None,
        diverged: bool = False,
    ) -> None:
        super().__init__(message)
        self.question_id, self.seed, self.step = question_id, seed, step
        self.diverged = diverged


E = TypeVar("E", bound=KVRescueError)


def located(where: str, error: E) -> E:
    """An error with the same class and cause, whose message begins with where it happened.

    A new one, because several may wait for the same failure, each somewhere else.
    """
    message = str(error)
    if message.startswith(where):
        return error
    found = type(error).__new__(type(error), f"{where}: {message}")  # whatever its constructor asks
    found.__dict__.update(error.__dict__)
    found.__cause__, found.__suppress_context__ = error.__cause__, error.__suppress_context__
    return found.with_traceback(error.__traceback__)

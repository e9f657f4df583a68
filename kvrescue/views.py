"""The views of one trajectory, one per proposer: opened, drawn from, advanced, closed together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kvrescue.detectors.base import Detector
from kvrescue.detectors.context import in_context
from kvrescue.errors import (
    AuditError,
    CapacityError,
    ConfigError,
    InputError,
    KVRescueError,
    PluginError,
    PolicyError,
    ReplayError,
    located,
)
from kvrescue.evictors.firing import Watch
from kvrescue.faults import whole_number
from kvrescue.policies.base import Policy, Sampling, View
from kvrescue.rules import check_candidates
from kvrescue.sampling import MOST_CANDIDATES
from kvrescue.seeding import candidate_seed
from kvrescue.tasks import asked_to_stop, gather, uninterrupted
from kvrescue.types import CacheStats, Candidate, Context, Degradation, Question

__all__ = ["Proposer", "Views"]

T = TypeVar("T")

_NEVER_DEGRADED: Final = (InputError, ConfigError, AuditError, PluginError, ReplayError)
"""To be mended by the user, or by the author of a listener; or a run that is not what it says."""


@dataclass(frozen=True)
class Proposer:
    """A policy, how many candidates it draws per step, and the detectors that screen them.

    Algorithm 1 is `[Proposer(base, n, detectors, "base"), Proposer(helper, n, name="helper")]`;
    best-of-N, full-KV and helper-only are lists of one.

    Raises:
        ConfigError: `n` is not a positive whole number, or a part is of the wrong kind.
    """

    policy: Policy
    """What draws its candidates."""
    n: int = 1
    """Candidates per step."""
    detectors: Sequence[Detector] = ()
    """What screens its candidates; none means that they are never aborted."""
    name: str = "base"
    """In traces, errors and accounts; unique among the proposers of a run."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigError(f"a proposer needs a name, not {self.name!r}")
        if not isinstance(self.policy, Policy):
            raise ConfigError(
                f"proposer {self.name!r}: the policy must be a kvrescue Policy, "
                f"not {type(self.policy).__name__}"
            )
        try:
            object.__setattr__(self, "n", whole_number("n", self.n, 1, MOST_CANDIDATES))
        except ConfigError as error:
            raise ConfigError(
                f"proposer {self.name!r}: {error} (leave the proposer out to draw nothing from it)"
            ) from None
        object.__setattr__(self, "detectors", tuple(self.detectors))
        for detector in self.detectors:
            if not isinstance(detector, Detector):
                raise ConfigError(
                    f"proposer {self.name!r}: {detector!r} is not a kvrescue Detector"
                )


class Views:
    """Every proposer's view of one trajectory.

    With `degrade`, a proposer that fails while drawing sits out the round; one that fails while
    opening or advancing is out for the rest of the trajectory, because its view no longer agrees
    with the context. Each failure is appended to `degradations`. Errors that a user has to mend
    (`InputError`, `ConfigError`, `ReplayError`, the `PluginError` of a listener) and `AuditError`
    are raised in any case.

    `watch`: makes a listener to the evictions of the named proposer's view; None: nobody listens.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        question: Question,
        degradations: list[Degradation],
        *,
        degrade: bool,
        watch: Callable[[str], Watch] | None = None,
    ) -> None:
        self.degradations = degradations
        self.caches: dict[str, CacheStats] = {}
        self._proposers = {proposer.name: proposer for proposer in proposers}
        self._question = question
        self._degrade = degrade
        self._watch = watch
        self._open: dict[str, View] = {}

    async def open(self) -> None:
        """Start the trajectory in every policy."""
        await self._each("opening", self._open_one, list(self._proposers), retire=True)

    def room(self, max_context: int) -> int:
        """Tokens that fit into every view."""
        return min(self._room_and_length(name, max_context)[0] for name in self._names)

    def require_room(self, max_context: int) -> None:
        """Raise `InputError` when some prompt leaves no room for a single token."""
        for name in self._names:
            room, length = self._room_and_length(name, max_context)
            if room < 1:
                raise InputError(
                    f"question {self._question.id!r} takes {length} tokens in {name!r}, whose "
                    f"context holds {length + room}: nothing can be added"
                )

    def stats(self) -> dict[str, CacheStats]:
        """Every open view's cache, now."""
        found = {}
        for name in self._names:
            with _measuring(name):
                found[name] = self._open[name].stats
        return found

    def rooms(self) -> dict[str, int]:
        """Tokens that still fit into every open view."""
        found = {}
        for name in self._names:
            with _measuring(name):
                found[name] = self._open[name].room
        return found

    def _room_and_length(self, name: str, max_context: int) -> tuple[int, int]:
        view = self._open[name]
        with _measuring(name):
            length = view.stats.logical_length
            return min(view.room, max_context - length), length

    async def propose(
        self, context: Context, draw: int, sampling: Sampling, max_tokens: int, run_seed: int
    ) -> list[Candidate]:
        """One round: every proposer's candidates in pool order, screened as what continues
        `context`."""

        async def draw_from(name: str) -> list[Candidate]:
            return await self._draw(name, context, draw, sampling, max_tokens, run_seed)

        drawn = await self._each("drawing", draw_from, self._names, retire=False)
        return [candidate for found in drawn.values() for candidate in found]

    async def commit(self, candidate: Candidate) -> bool:
        """Advance every view; False when some view had no room for a foreign step's tokens."""

        async def advance(name: str) -> bool:
            return await self._commit(name, candidate)

        return all((await self._each("advancing", advance, self._names, retire=True)).values())

    async def close(self) -> None:
        """Close every view, whatever happens to one of them, and keep its cache's audit.

        Raises:
            AuditError: first of all that were raised.
            PolicyError: a view could not be closed (with `degrade` this is recorded instead).
        """
        await uninterrupted(self._close(self._names))

    @property
    def _names(self) -> list[str]:
        """Proposers with an open view, in pool order."""
        return [name for name in self._proposers if name in self._open]

    async def _close(self, names: Sequence[str]) -> None:
        errors: list[tuple[str, Exception]] = []
        for name in names:
            view = self._open.pop(name)
            try:
                self.caches[name] = view.stats
            except Exception as error:
                errors.append((name, _typed("auditing", name, error)))
            try:
                await view.close()
            except (Exception, asyncio.CancelledError) as error:
                errors.append((name, _typed("closing", name, error)))
        # An audit that failed is never outvoted by another error.
        errors.sort(key=lambda failure: not isinstance(failure[1], AuditError))
        for name, found in errors:
            if isinstance(found, AuditError) or not self._degrade:
                raise found
            self.degradations.append(Degradation(where=name, message=str(found)))

    async def _open_one(self, name: str) -> None:
        # Stored at once: a view is closed even when its sibling fails in this very moment.
        policy = self._proposers[name].policy
        if self._watch is None:
            self._open[name] = await policy.open(self._question, name)
        else:
            watch = self._watch(name)
            self._open[name] = await policy.open_watched(self._question, name, watch)

    async def _draw(
        self,
        name: str,
        context: Context,
        draw: int,
        sampling: Sampling,
        max_tokens: int,
        run_seed: int,
    ) -> list[Candidate]:
        proposer = self._proposers[name]
        seeds = [
            candidate_seed(run_seed, self._question.id, draw, name, index)
            for index in range(proposer.n)
        ]
        detectors = tuple(in_context(detector, context) for detector in proposer.detectors)
        found = await self._open[name].propose(proposer.n, sampling, detectors, seeds, max_tokens)
        return check_candidates(
            found,
            name,
            proposer.n,
            screened=bool(proposer.detectors),
            max_tokens=min(max_tokens, sampling.max_step_tokens),
        )

    async def _commit(self, name: str, candidate: Candidate) -> bool:
        try:
            await self._open[name].commit(candidate)
        except CapacityError:
            if candidate.policy == name:
                raise
            return False  # a foreign step may take more tokens here than where it was drawn
        return True

    async def _each(
        self,
        doing: str,
        action: Callable[[str], Awaitable[T]],
        names: Sequence[str],
        *,
        retire: bool,
    ) -> dict[str, T]:
        """Do one thing in several views at once.

        Args:
            doing: what, for error messages.
            action: called with the name of a proposer.
            names: of which proposers.
            retire: close the views of those that fail.
        """
        results = await gather(
            {name: _typed_errors(doing, name, action) for name in names}, keep_going=self._degrade
        )
        good: dict[str, T] = {}
        failed: dict[str, Exception] = {}
        for name, result in results.items():
            if isinstance(result, Exception):
                failed[name] = result
            else:
                good[name] = result
        for error in failed.values():
            if isinstance(error, _NEVER_DEGRADED):
                raise error
        for name, error in failed.items():
            self.degradations.append(Degradation(where=name, message=str(error)))
        if not good:
            raise next(iter(failed.values()))
        if retire:
            await uninterrupted(self._close([name for name in failed if name in self._open]))
        return good


@contextlib.contextmanager
def _measuring(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        typed = _typed("measuring", name, error)
        raise typed from typed.__cause__


async def _typed_errors(doing: str, name: str, action: Callable[[str], Awaitable[T]]) -> T:
    try:
        return await action(name)
    except asyncio.CancelledError as error:
        if asked_to_stop():
            raise
        raise _typed(doing, name, error) from error  # the policy gave up, nobody asked it to
    except Exception as error:
        typed = _typed(doing, name, error)
        raise typed from typed.__cause__


def _typed(doing: str, name: str, error: BaseException) -> Exception:
    """An error of ours, led by the proposer, or a `PolicyError` with anything else as its cause."""
    if isinstance(error, KVRescueError):
        return located(f"proposer {name!r}", error)
    typed = PolicyError(f"proposer {name!r} failed while {doing}: {type(error).__name__}: {error}")
    typed.__cause__ = error
    return typed

"""The audit of a run (law 10): an evictor that never fired must not pass for eviction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from kvrescue.errors import AuditError
from kvrescue.evictors.base import Evictor
from kvrescue.types import CacheStats

__all__ = ["Audit", "check_fired"]


@dataclass(slots=True)
class Audit:
    """Eviction counters of one sequence; a fork starts from a copy of its parent's."""

    evictions: int = 0
    dropped: int = 0
    peak: int = 0

    def note(self, length: int, dropped: int) -> None:
        """Record the state after an operation that left `length` entries."""
        self.evictions += dropped > 0
        self.dropped += dropped
        self.peak = max(self.peak, length)

    def copy(self) -> Self:
        return replace(self)


def check_fired(evictor: Evictor | None, stats: CacheStats) -> None:
    """Raises AuditError when a sequence outgrew its bound and nothing was ever evicted."""
    if evictor is None or stats.bound is None or stats.evictions:
        return
    if stats.logical_length >= stats.bound + evictor.interval:
        raise AuditError(
            f"evictor {evictor.kind!r} (bound {stats.bound}) never fired on a sequence of "
            f"{stats.logical_length} tokens: the run was full-KV in disguise"
        )

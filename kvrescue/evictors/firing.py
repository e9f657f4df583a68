"""Firing: what an engine tells of one eviction, while the cache is as the evictor left it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from kvrescue.errors import EvictorError

if TYPE_CHECKING:
    from numpy import ndarray

__all__ = ["Firing", "Watch", "When"]

When: TypeAlias = Literal["prompt", "decode", "rebase"]


@dataclass(eq=False, slots=True)
class Firing:
    """One row's eviction; see `kvrescue.events.EvictionFired` for the fields."""

    when: When
    candidate: int | None
    dropped: int
    logical_length: int
    physical_length: int
    read: Callable[[], ndarray] | None = field(repr=False)
    """Copies the positions out of the cache; None once the cache has moved on."""
    _positions: ndarray | None = field(default=None, repr=False)

    def positions(self) -> ndarray:
        """int32 [layers, kv_heads, physical length], ascending.

        Raises:
            EvictorError: it is too late to read them.
        """
        if self._positions is None:
            if self.read is None:
                raise EvictorError(
                    "the positions that an eviction kept are to be read before the hook returns: "
                    "the cache has moved on since"
                )
            self._positions = self.read()
        return self._positions

    def tell(self, watch: Watch) -> None:
        """Call `watch`, after which positions that it has not read are gone."""
        try:
            watch(self)
        finally:
            self.read = None


Watch: TypeAlias = Callable[[Firing], None]
"""Called with every eviction, in the middle of an engine's step: keep it quick."""

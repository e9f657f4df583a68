"""Admission: blocks are promised before they are needed, so that nothing ever waits for a block
while it holds others (held states are invisible to vLLM's scheduler: without this they could fill
the pool and nothing would ever run again).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kvrescue.errors import CapacityError

__all__ = ["Admission"]

_LOOK = 30.0  # seconds between looks at whether a waiting sequence could ever get its turn


class Admission:
    """Promises out of a pool of `total` blocks.

    A sequence is promised, before it opens, all that its state and its candidates can ever hold.
    Later wants are granted at once or refused; the only thing that waits is the start of a
    sequence, and a long step for another long step to end. `progress()` must change while the
    engine works: if neither it nor a promise changes, waiting is an error instead of a hang.
    """

    def __init__(self, total: int, progress: Callable[[], int]) -> None:
        self.total = total
        self.promised = 0
        self._progress = progress
        self._returned = 0
        self._urgent: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        return self.total - self.promised

    def take(self, blocks: int, advice: str) -> None:
        """Promise more blocks now. Raises CapacityError when there are not enough."""
        if blocks > self.free:
            raise CapacityError(
                f"{blocks} more KV blocks are needed and {self.free} of {self.total} are free; "
                f"{advice}"
            )
        self.promised += blocks

    async def wait(self, blocks: int, advice: str, *, urgent: bool = False) -> None:
        """Promise blocks when enough are free, in order of arrival; urgent wants come first.

        What a sequence wants that is open already is urgent: others wait for it to end.

        Raises CapacityError when the pool is too small, or when nothing moves any more.
        """
        if blocks > self.total:
            raise CapacityError(
                f"{blocks} KV blocks are needed and the pool has {self.total}; {advice}"
            )
        queue = self._urgent if urgent else self._waiting
        if not self._urgent and not queue and blocks <= self.free:
            self.promised += blocks
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        want = (blocks, turn)
        queue.append(want)
        try:
            await self._turn(turn, blocks, advice)
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(blocks)  # it was granted in this very moment
            if want in queue:
                queue.remove(want)
            self._admit()
            raise

    async def _turn(self, turn: asyncio.Future[None], blocks: int, advice: str) -> None:
        seen = (-1, -1)
        while not turn.done():
            now = (self._progress(), self._returned)
            if now == seen:
                raise CapacityError(
                    f"{blocks} KV blocks are needed, {self.free} of {self.total} are free, and "
                    f"none was returned for {_LOOK:.0f} s while nothing ran; {advice}"
                )
            seen = now
            await asyncio.wait([turn], timeout=_LOOK)

    def give(self, blocks: int) -> None:
        """Return promised blocks."""
        self.promised -= blocks
        self._returned += 1
        self._admit()

    def _admit(self) -> None:
        while (queue := self._urgent or self._waiting) and queue[0][0] <= self.free:
            blocks, turn = queue.popleft()
            if not turn.done():
                self.promised += blocks
                turn.set_result(None)

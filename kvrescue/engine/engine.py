"""Engine: event-driven continuous batching over parked and live rows of one model.

*Parked* rows are the persistent states, one per trajectory. A proposal forks its parked row into
*live* rows, which decode together: one `tick()` advances every live row of every problem by one
token. A fork that ends leaves the live rows at once (its cache is held until the next commit), a
proposal whose forks have all ended resolves at once, whatever the other problems are doing.

A full-context policy is an engine without an evictor. Evicted or not, the code path is the same but
for where forks lie: evicted ones in a row each, others side by side (`kvrescue.engine.forks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kvrescue.detectors.base import Detector
from kvrescue.engine.adapter import ModelAdapter
from kvrescue.engine.live import LiveRows
from kvrescue.engine.parked import ParkedRows
from kvrescue.engine.runner import Runner
from kvrescue.engine.sequence import Draft, Extension, Group, ParkedSequence, Probe
from kvrescue.engine.text import TokenText
from kvrescue.errors import COMPONENT_FAILURES, PolicyError
from kvrescue.evictors.audit import check_fired
from kvrescue.evictors.base import Evictor
from kvrescue.evictors.firing import Watch
from kvrescue.sampling import Sampling
from kvrescue.types import CacheStats, StopReason

__all__ = ["Engine"]


class Engine:
    """Runs one model for any number of concurrent trajectories on one event loop.

    `graphs`: decode from CUDA graphs (see `kvrescue.engine.graphs`). `share_prefix`: candidates of
    one sequence share its prefix while they decode (see `kvrescue.engine.packs`); None: without an
    evictor and graphs, on the CPU. Raises ConfigError where one of them cannot be had.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        *,
        evictor: Evictor | None = None,
        pieces: TokenText | None = None,
        eos: frozenset[int] = frozenset(),
        max_live_rows: int = 1024,
        graphs: bool = False,
        share_prefix: bool | None = None,
    ) -> None:
        self.adapter = adapter
        self.pieces = pieces
        self.eos = eos
        self.runner = Runner(adapter, evictor, graphs, share_prefix)
        self.evictor = self.runner.evictor
        self.parked = ParkedRows(self.runner)
        self.live = LiveRows(self.runner, self.parked, max_live_rows)
        self._open: set[ParkedSequence] = set()
        self._driver: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- operations -----------------------------------------------------------------------------

    async def open(self, tokens: Sequence[int], watch: Watch | None = None) -> ParkedSequence:
        """Start a sequence: full attention over `tokens`, then eviction.

        Args:
            tokens: of the prompt.
            watch: told of every eviction of the sequence and its forks; what it raises fails the
                work that evicted.
        """
        sequence = ParkedSequence(row=self.parked.take(), watch=watch)
        self._open.add(sequence)
        if self.evictor and self.evictor.protect_prompt:
            self.parked.store.prefix[sequence.row] = len(tokens)
        try:
            await self.extend(sequence, tokens)
        except BaseException:
            self.close(sequence, audit=False)
            raise
        return sequence

    async def extend(self, sequence: ParkedSequence, tokens: Sequence[int]) -> None:
        """Feed `tokens` in one forward pass, then evict (law 6); none: only drop the forks."""
        self._check_open(sequence)
        sequence.forks.clear()
        if not tokens:
            return
        done: asyncio.Future[None] = self._future()
        self.parked.extensions.append(Extension(sequence, tokens, done))
        await done

    async def propose(
        self,
        sequence: ParkedSequence,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        cap: int,
        cap_reason: StopReason,
        carry: str = "",
    ) -> list[Draft]:
        """Decode one fork per seed until each ends; the forks stay held on the sequence. No seeds:
        only drop the forks of the last proposal."""
        self._check_open(sequence)
        if self.pieces is None or sequence.logits is None:
            raise PolicyError(f"{self.adapter.name} cannot generate: it has no language-model head")
        sequence.forks.clear()
        if not len(seeds):
            return []
        done: asyncio.Future[list[Draft]] = self._future()
        group = Group(sequence, sampling, tuple(detectors), cap, cap_reason, done, size=len(seeds))
        group.waiting = [
            Draft(group, i, seed, self.pieces, self.eos, carry) for i, seed in enumerate(seeds)
        ]
        self.live.groups.append(group)
        try:
            return await done
        except BaseException:
            self.live.abandon(group)
            raise

    async def probe(
        self,
        sequence: ParkedSequence,
        continuations: Sequence[Sequence[int]],
        *,
        logprobs: bool = False,
        keep: bool = False,
    ) -> list[Tensor]:
        """Feed each continuation to its own fork; see `Probe`. `keep` holds the forks.

        Raises PolicyError on an evicted engine: what scores must see everything.
        """
        self._check_open(sequence)
        if self.evictor is not None:
            raise PolicyError(f"{self.adapter.name} has an evictor; probe a full-context engine")
        sequence.forks.clear()
        done: asyncio.Future[list[Tensor]] = self._future()
        self.parked.probes.append(Probe(sequence, continuations, logprobs, keep, done))
        return await done

    def adopt(self, sequence: ParkedSequence, index: int) -> None:
        """The parked row becomes the held fork `index`.

        A fork that was decoded lacks its last token, which was sampled but not fed: extend by it.
        """
        self._check_open(sequence)
        self.parked.adopt(sequence, index)
        sequence.forks.clear()

    def close(self, sequence: ParkedSequence, *, audit: bool = True) -> None:
        """Free the sequence's row; idempotent. Raises AuditError (law 10) after freeing."""
        if sequence.closed:
            return
        stats = self.stats(sequence)
        groups = {*self.live.groups, *(d.group for d in self.live.drafts)}
        for group in [g for g in groups if g.sequence is sequence]:
            self.live.abandon(group)
        queue: list[Extension | Probe] = [*self.parked.extensions, *self.parked.probes]
        for queued in queue:
            if queued.sequence is sequence:
                queued.done.cancel()  # nobody may wait for work that will not be done
        sequence.closed = True
        sequence.forks.clear()
        self._open.discard(sequence)
        self.parked.free(sequence.row)
        if audit:
            check_fired(self.evictor, stats)

    def stats(self, sequence: ParkedSequence) -> CacheStats:
        """Audit of a sequence's own state."""
        row, audit, store = sequence.row, sequence.audit, self.parked.store
        bound = self.evictor.bound + int(store.prefix[row]) if self.evictor else None
        return CacheStats(
            logical_length=int(store.logical[row]),
            physical_length=int(store.length[row]),
            peak_physical=audit.peak,
            evictions=audit.evictions,
            dropped=audit.dropped,
            bound=bound,
        )

    @property
    def in_use(self) -> dict[str, int]:
        """Rows and forks held now; all zero when every sequence is closed (law 5)."""
        return {
            "parked": len(self._open),
            "live": len(self.live.drafts),
            "waiting": sum(len(g.waiting) for g in self.live.groups),
            "held": sum(len(s.forks) for s in self._open),
        }

    @property
    def tokens_fed(self) -> int:
        """Tokens that went through the model so far, padding not counted."""
        return self.runner.tokens_fed

    # -- driving --------------------------------------------------------------------------------

    def _check_open(self, sequence: ParkedSequence) -> None:
        if sequence.closed:
            raise PolicyError(f"{self.adapter.name}: the sequence is closed")

    def _future(self) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        if self._driver is None or self._driver.done() or self._loop is None:
            self._start(loop)
        elif loop is not self._loop:
            if not self._loop.is_closed():
                raise PolicyError(
                    f"{self.adapter.name} is at work on another event loop; use one Rescue (or "
                    "one loop) per engine at a time"
                )
            self._start(loop)  # the old loop died in the middle of its work
        return loop.create_future()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._driver = loop.create_task(self._drive(), name=f"engine {self.adapter.name}")

    async def _drive(self) -> None:
        # One sleep(0) lets every coroutine that wants work queue it first, so it runs as a batch.
        await asyncio.sleep(0)
        while self._has_work():
            try:
                self.tick()
            except COMPONENT_FAILURES as error:
                self._fail_everything(error)
            await asyncio.sleep(0)

    def _has_work(self) -> bool:
        return bool(
            self.parked.extensions or self.parked.probes or self.live.groups or self.live.drafts
        )

    def tick(self) -> None:
        """Run what is queued for parked rows, then advance all live rows by one token."""
        if self.parked.due(len(self._open)):
            self.parked.run()
        if self.live.groups or self.live.drafts:
            self.live.step()

    def _fail_everything(self, error: BaseException) -> None:
        """An unexpected failure reaches every waiting caller instead of hanging it."""
        waiting: list[asyncio.Future[Any]] = [e.done for e in self.parked.extensions]
        waiting += [p.done for p in self.parked.probes]
        waiting += [g.done for g in {*self.live.groups, *(d.group for d in self.live.drafts)}]
        self.parked.extensions.clear()
        self.parked.probes.clear()
        self.live.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)

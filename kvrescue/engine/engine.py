"""Engine: event-driven continuous batching over parked and live rows of one model.

*Parked* rows are the persistent states, one per trajectory. A proposal forks its parked row into
*live* rows, which decode together: one `tick()` advances every live row of every problem by one
token. A fork that ends leaves the live rows at once (its cache is held until the next commit), a
proposal whose forks have all ended resolves at once, whatever the other problems are doing.

Evicted or not, the code path is the same: a full-context policy is an engine without an evictor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from kvrescue.detectors.base import Detector
from kvrescue.engine.adapter import ModelAdapter
from kvrescue.engine.sampler import entropy, sample
from kvrescue.engine.sequence import (
    Draft,
    Extension,
    Group,
    HeldFork,
    ParkedSequence,
    Probe,
    right_pad,
)
from kvrescue.engine.slots import SlotStore
from kvrescue.engine.text import TokenText
from kvrescue.errors import AuditError, NonFiniteLogitsError, PolicyError
from kvrescue.evictors.base import Evictor
from kvrescue.policies.base import Sampling
from kvrescue.types import CacheStats, StopReason

__all__ = ["Engine"]

_CHUNK = 512  # tokens of a long prompt fed per forward pass
_BATCH_TOKENS = 16384  # padded tokens fed per forward pass of extensions and probes


@contextlib.contextmanager
def _failing(futures: Iterable[asyncio.Future]) -> Iterator[None]:  # type: ignore[type-arg]
    """A failure of work that left the queue reaches those who wait for it."""
    waiting = list(futures)
    try:
        yield
    except Exception as error:
        for future in waiting:
            if not future.done():
                future.set_exception(error)


class Engine:
    """Runs one model for any number of concurrent trajectories on one event loop."""

    def __init__(
        self,
        adapter: ModelAdapter,
        *,
        evictor: Evictor | None = None,
        pieces: TokenText | None = None,
        eos: frozenset[int] = frozenset(),
        max_live_rows: int = 1024,
    ) -> None:
        self.adapter = adapter
        self.evictor = evictor
        self.pieces = pieces
        self.eos = eos
        self.max_live_rows = max_live_rows
        self._shape = adapter.shape(
            observation=evictor.observation if evictor else 0,
            attention=bool(evictor and evictor.needs_attention),
        )
        capacity = evictor.bound + evictor.interval if evictor else 0
        self._parked = SlotStore(self._shape, 0, capacity)
        self._live = SlotStore(self._shape, 0, capacity)
        self._free: list[int] = []
        self._open: set[ParkedSequence] = set()
        self._drafts: list[Draft] = []  # draft i decodes in live row i
        self._extensions: deque[Extension] = deque()
        self._probes: deque[Probe] = deque()
        self._groups: deque[Group] = deque()  # with drafts waiting for a live row
        self._driver: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ticks = 0
        self.tokens_fed = 0
        """Tokens that went through the model (padding not counted), for cost accounting."""

    # -- operations -----------------------------------------------------------------------------

    async def open(self, tokens: Sequence[int]) -> ParkedSequence:
        """Start a sequence: full attention over `tokens`, then eviction."""
        sequence = ParkedSequence(row=self._take_row(), prompt_tokens=len(tokens))
        self._open.add(sequence)
        if self.evictor and self.evictor.protect_prompt:
            self._parked.prefix[sequence.row] = len(tokens)
        try:
            await self.extend(sequence, tokens)
        except BaseException:
            self.close(sequence, audit=False)
            raise
        return sequence

    async def extend(self, sequence: ParkedSequence, tokens: Sequence[int]) -> None:
        """Feed `tokens` in one forward pass, then evict (law 6)."""
        self._check_open(sequence)
        done: asyncio.Future[None] = self._future()
        self._extensions.append(Extension(sequence, tokens, done))
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
        """Decode one fork per seed until each ends; the forks stay held on the sequence."""
        self._check_open(sequence)
        if self.pieces is None or sequence.logits is None:
            raise PolicyError(f"{self.adapter.name} cannot generate: it has no language-model head")
        sequence.forks.clear()
        done: asyncio.Future[list[Draft]] = self._future()
        group = Group(sequence, sampling, tuple(detectors), cap, cap_reason, done, size=len(seeds))
        group.waiting = [
            Draft(group, i, seed, self.pieces, self.eos, carry) for i, seed in enumerate(seeds)
        ]
        self._groups.append(group)
        try:
            return await done
        except BaseException:
            self._abandon(group)
            raise

    async def probe(
        self,
        sequence: ParkedSequence,
        continuations: Sequence[Sequence[int]],
        *,
        logprobs: bool = False,
        keep: bool = False,
    ) -> list[Tensor]:
        """Feed each continuation to its own fork; see `Probe`. `keep` holds the forks."""
        self._check_open(sequence)
        sequence.forks.clear()
        done: asyncio.Future[list[Tensor]] = self._future()
        self._probes.append(Probe(sequence, continuations, logprobs, keep, done))
        return await done

    def adopt(self, sequence: ParkedSequence, index: int) -> None:
        """The parked row becomes the held fork `index` (without its last, unfed token)."""
        self._check_open(sequence)
        fork = sequence.forks[index]
        self._parked.adopt(sequence.row, fork.block, fork.index, fork.length, fork.logical)
        sequence.audit = fork.audit
        sequence.forks.clear()

    def close(self, sequence: ParkedSequence, *, audit: bool = True) -> None:
        """Free the sequence's row; idempotent. Raises AuditError (law 10) after freeing."""
        if sequence.closed:
            return
        stats = self.stats(sequence)
        for group in {d.group for d in self._drafts if d.group.sequence is sequence}:
            self._abandon(group)
        sequence.closed = True
        sequence.forks.clear()
        self._open.discard(sequence)
        row = sequence.row
        self._parked.length[row] = self._parked.logical[row] = self._parked.prefix[row] = 0
        self._free.append(row)
        if audit and self.evictor and stats.bound is not None and stats.evictions == 0:
            due = stats.bound + self.evictor.interval
            if stats.logical_length >= due:
                raise AuditError(
                    f"evictor {self.evictor.kind!r} (bound {stats.bound}) never fired on a sequence "
                    f"of {stats.logical_length} tokens; results would be full-KV in disguise"
                )

    def stats(self, sequence: ParkedSequence) -> CacheStats:
        """Audit of a sequence's own state."""
        row, audit = sequence.row, sequence.audit
        bound = None
        if self.evictor is not None:
            bound = self.evictor.bound + int(self._parked.prefix[row])
        return CacheStats(
            logical_length=int(self._parked.logical[row]),
            physical_length=int(self._parked.length[row]),
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
            "live": len(self._drafts),
            "waiting": sum(len(g.waiting) for g in self._groups),
            "held": sum(len(s.forks) for s in self._open),
        }

    # -- driving --------------------------------------------------------------------------------

    def _future(self) -> asyncio.Future:  # type: ignore[type-arg]
        loop = asyncio.get_running_loop()
        if self._driver is None or self._driver.done():
            self._loop = loop
            self._driver = loop.create_task(self._drive(), name=f"engine {self.adapter.name}")
        elif loop is not self._loop:
            raise PolicyError(
                f"{self.adapter.name} is at work on another event loop; use one Rescue (or one "
                "loop) per engine at a time"
            )
        return loop.create_future()

    async def _drive(self) -> None:
        # One sleep(0) lets every coroutine that wants work queue it first, so it runs as a batch.
        await asyncio.sleep(0)
        while self._extensions or self._probes or self._groups or self._drafts:
            try:
                self.tick()
            except Exception as error:
                self._fail_everything(error)
            await asyncio.sleep(0)

    def _fail_everything(self, error: Exception) -> None:
        """An unexpected failure reaches every waiting caller instead of hanging it."""
        waiting = [e.done for e in self._extensions] + [p.done for p in self._probes]
        waiting += [g.done for g in {*self._groups, *(d.group for d in self._drafts)}]
        self._extensions.clear()
        self._probes.clear()
        self._groups.clear()
        self._drafts.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    def tick(self) -> None:
        """Do everything that is queued once, then advance all live rows by one token."""
        self.ticks += 1
        if self._extensions:
            self._run_extensions()
        if self._probes:
            self._run_probes()
        if self._groups or self._drafts:
            self._decode()

    # -- parked rows ----------------------------------------------------------------------------

    def _take_row(self) -> int:
        if not self._free:
            rows = self._parked.rows
            self._parked.reserve(rows + 1, self._parked.capacity)
            self._free = list(range(self._parked.rows - 1, rows - 1, -1))
        return self._free.pop()

    def _check_open(self, sequence: ParkedSequence) -> None:
        if sequence.closed:
            raise PolicyError(f"{self.adapter.name}: the sequence is closed")

    def _scratch(self, rows: Sequence[int], extra: int) -> SlotStore:
        """A temporary store with copies of parked rows and room for `extra` more tokens."""
        longest = int(self._parked.length[list(rows)].max(initial=0))
        scratch = SlotStore(self._shape, len(rows), longest + extra)
        scratch.copy_from(self._parked, rows, range(len(rows)))
        return scratch

    def _run_extensions(self) -> None:
        batch: list[Extension] = []
        seen: set[int] = set()
        width = 0
        later: deque[Extension] = deque()
        while self._extensions:
            e = self._extensions.popleft()
            if e.done.done() or e.sequence.closed:
                continue  # cancelled while waiting
            wider = max(width, min(len(e.tokens), _CHUNK))
            if id(e.sequence) in seen or (batch and wider * (len(batch) + 1) > _BATCH_TOKENS):
                later.append(e)
                continue
            seen.add(id(e.sequence))
            width = wider
            batch.append(e)
        self._extensions = later
        if batch:
            with _failing(e.done for e in batch):
                self._extend(batch)

    def _extend(self, batch: list[Extension]) -> None:
        rows = [e.sequence.row for e in batch]
        longest = max(len(e.tokens) for e in batch)
        scratch = self._scratch(rows, longest)
        last: list[Tensor | None] = [None] * len(batch)
        for at in range(0, longest, _CHUNK):
            tokens, counts = right_pad([e.tokens[at : at + _CHUNK] for e in batch])
            hidden = self.adapter.forward(scratch, tokens, counts)
            self.tokens_fed += int(counts.sum())
            for i in np.flatnonzero(counts).tolist():
                last[i] = hidden[i, counts[i] - 1]
        dropped = self._evict(scratch, len(batch))
        self._parked.reserve(self._parked.rows, int(scratch.length.max(initial=0)))
        self._parked.copy_from(scratch, range(len(batch)), rows)
        logits = self._last_logits(last)
        for i, e in enumerate(batch):
            e.sequence.audit.note(int(scratch.length[i]), int(dropped[i]))
            if logits is not None:
                e.sequence.logits = logits[i]
            if e.done.done():
                continue
            if logits is not None and not bool(torch.isfinite(logits[i]).all()):
                e.done.set_exception(self._non_finite())
            else:
                e.done.set_result(None)

    def _last_logits(self, last: list[Tensor | None]) -> Tensor | None:
        if self.adapter.head is None or not all(h is not None for h in last):
            return None
        return self.adapter.logits(torch.stack([h for h in last if h is not None]))

    def _evict(self, store: SlotStore, count: int) -> np.ndarray:
        if self.evictor is None:
            return np.zeros(count, dtype=np.int64)
        with torch.no_grad():
            return store.evict(self.evictor, count)

    def _non_finite(self) -> NonFiniteLogitsError:
        return NonFiniteLogitsError(
            f"{self.adapter.name} returned NaN or infinite logits; check the checkpoint and the "
            f"dtype ({self.adapter.dtype})"
        )

    # -- probes ---------------------------------------------------------------------------------

    def _run_probes(self) -> None:
        probes = [p for p in self._probes if not (p.done.done() or p.sequence.closed)]
        self._probes.clear()
        jobs = [(p, i) for p in probes for i in range(len(p.continuations))]
        results: dict[Probe, list[Tensor]] = {p: [] for p in probes}
        size = max((len(p.continuations[i]) for p, i in jobs), default=1)
        step = max(1, _BATCH_TOKENS // max(1, size))
        with _failing(p.done for p in probes):
            for at in range(0, len(jobs), step):
                self._probe(jobs[at : at + step], results)
        for p in probes:
            if not p.done.done():
                p.done.set_result(results[p])

    def _probe(self, jobs: list[tuple[Probe, int]], results: dict[Probe, list[Tensor]]) -> None:
        rows = [p.sequence.row for p, _ in jobs]
        tokens, counts = right_pad([p.continuations[i] for p, i in jobs])
        scratch = self._scratch(rows, tokens.shape[1])
        start = int(scratch.length.min(initial=0))
        hidden = self.adapter.forward(scratch, tokens, counts)
        self.tokens_fed += int(counts.sum())
        block = None
        if any(p.keep for p, _ in jobs):
            block = scratch.export(range(len(jobs)), start)
        for row, (p, i) in enumerate(jobs):
            n = int(counts[row])
            if p.logprobs:
                results[p].append(self._token_logprobs(p.sequence, hidden[row, :n], tokens[row, :n]))
            else:
                results[p].append(hidden[row, n - 1])
            if p.keep and block is not None:
                p.sequence.forks[i] = HeldFork(
                    block, row, int(scratch.length[row]), int(scratch.logical[row]),
                    p.sequence.audit.copy(),
                )

    def _token_logprobs(self, sequence: ParkedSequence, hidden: Tensor, ids: np.ndarray) -> Tensor:
        """[n] log-probabilities of `ids` given the parked state, from `hidden` [n, hidden]."""
        if sequence.logits is None:
            raise PolicyError(f"{self.adapter.name} has no language-model head")
        logits = torch.cat([sequence.logits[None], self.adapter.logits(hidden[:-1])])
        chosen = torch.from_numpy(ids).to(logits.device)[:, None]
        return logits.log_softmax(dim=-1).gather(-1, chosen)[:, 0]

    # -- live rows ------------------------------------------------------------------------------

    def _decode(self) -> None:
        old = len(self._drafts)
        logits: list[Tensor] = []
        if old:
            fed = np.array([[d.token_ids[-1]] for d in self._drafts], dtype=np.int64)
            hidden = self.adapter.forward(self._live, fed, np.ones(old, dtype=np.int64))
            self.tokens_fed += old
            dropped = self._evict(self._live, old)
            for i, d in enumerate(self._drafts):
                d.audit.note(int(self._live.length[i]), int(dropped[i]))
                d.evicted |= bool(dropped[i])
            logits.append(self.adapter.logits(hidden[:, -1]))
        logits += [d.group.sequence.logits[None] for d in self._admit()]  # type: ignore[index]
        if logits:
            self._sample(torch.cat(logits))

    def _admit(self) -> list[Draft]:
        """Fork parked rows into free live rows, oldest proposal first."""
        admitted: list[Draft] = []
        while self._groups and len(self._drafts) < self.max_live_rows:
            group = self._groups[0]
            if group.done.done() or group.sequence.closed:
                self._groups.popleft()
                continue
            count = min(len(group.waiting), self.max_live_rows - len(self._drafts))
            first, row = len(self._drafts), group.sequence.row
            length = int(self._parked.length[row])
            self._live.reserve(min(first + count, self.max_live_rows), length + 1)
            self._live.broadcast_from(self._parked, row, first, count)
            for draft in group.waiting[:count]:
                draft.fork_length = length
                self._drafts.append(draft)
                admitted.append(draft)
            del group.waiting[:count]
            if not group.waiting:
                self._groups.popleft()
        return admitted

    @torch.no_grad()
    def _sample(self, logits: Tensor) -> None:
        entropies = entropy(logits)
        device = logits.device
        chosen = torch.zeros(len(self._drafts), dtype=torch.long, device=device)
        by_sampling: dict[Sampling, list[int]] = {}
        for i, d in enumerate(self._drafts):
            by_sampling.setdefault(d.group.sampling, []).append(i)
        for sampling, rows in by_sampling.items():
            drafts = [self._drafts[i] for i in rows]
            u = torch.tensor([d.uniform[len(d.token_ids)] for d in drafts], device=device)
            if len(rows) == len(self._drafts):
                chosen = sample(logits, sampling, u)
            else:
                index = torch.tensor(rows, device=device)
                chosen[index] = sample(logits[index], sampling, u)
        self._push(chosen.tolist(), entropies.tolist())

    def _push(self, chosen: list[int], entropies: list[float]) -> None:
        ended: list[int] = []
        for i, (draft, token, h) in enumerate(zip(self._drafts, chosen, entropies, strict=True)):
            if draft.group.done.done():
                ended.append(i)  # cancelled
            elif not np.isfinite(h):
                draft.group.done.set_exception(self._non_finite())
                ended.append(i)
            elif draft.push(token, h) is not None:
                ended.append(i)
        if ended:
            self._retire(ended)

    def _retire(self, ended: list[int]) -> None:
        """Hold the caches of finished forks and close the gaps they leave in the live rows."""
        drafts = [self._drafts[i] for i in ended]
        adoptable = [
            (i, d) for i, d in zip(ended, drafts, strict=True)
            if d.stop not in (None, StopReason.ABORTED) and not d.group.done.done()
        ]
        if adoptable:
            start = min(0 if d.evicted else d.fork_length for _, d in adoptable)
            block = self._live.export([i for i, _ in adoptable], start)
            for j, (i, d) in enumerate(adoptable):
                d.group.sequence.forks[d.index] = HeldFork(
                    block, j, int(self._live.length[i]), int(self._live.logical[i]), d.audit
                )
        self._remove(ended)
        for d in drafts:
            d.group.close(d)

    def _remove(self, ended: Sequence[int]) -> None:
        """Swap-remove: the last live rows move into the gaps."""
        gone = set(ended)
        survivors = len(self._drafts) - len(gone)
        gaps = [i for i in sorted(gone) if i < survivors]
        movers = [i for i in range(survivors, len(self._drafts)) if i not in gone]
        self._live.copy_from(self._live, movers, gaps)
        for gap, mover in zip(gaps, movers, strict=True):
            self._drafts[gap] = self._drafts[mover]
        del self._drafts[survivors:]

    def _abandon(self, group: Group) -> None:
        """Stop all work on a proposal (cancelled or failed) at once."""
        if not group.done.done():
            group.done.cancel()
        group.waiting.clear()
        with contextlib.suppress(ValueError):
            self._groups.remove(group)
        if rows := [i for i, d in enumerate(self._drafts) if d.group is group]:
            self._remove(rows)

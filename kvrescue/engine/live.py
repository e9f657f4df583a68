"""LiveRows: the forks that decode now, of all problems together, one token per tick."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.parked import ParkedRows
from kvrescue.engine.runner import Runner, failing, tell
from kvrescue.engine.sampler import sample, token_statistics
from kvrescue.engine.sequence import Draft, Group, HeldFork
from kvrescue.errors import COMPONENT_FAILURES
from kvrescue.sampling import Sampling
from kvrescue.types import StopReason

__all__ = ["LiveRows"]


class LiveRows:
    """Draft i decodes in row i of the live store, so a step reads the cache without a gather."""

    def __init__(self, runner: Runner, parked: ParkedRows, max_rows: int) -> None:
        self.runner = runner
        self.parked = parked
        self.max_rows = max_rows
        self.store = runner.store(0)
        self.drafts: list[Draft] = []
        self.groups: deque[Group] = deque()
        """Proposals with drafts that wait for a row, oldest first."""

    def step(self) -> None:
        """Advance every live draft by one token, and admit waiting ones (their first token needs
        no forward pass: the parked row knows its logits)."""
        logits: list[Tensor] = []
        if old := len(self.drafts):
            fed = np.array([d.token_ids[-1] for d in self.drafts], dtype=np.int64)
            hidden = self.runner.decode(self.store, fed)
            for i in self.runner.sick(self.store, hidden):
                self._fail(self.drafts[i].group)
            dropped = self.runner.evict(self.store, old)
            for i, d in enumerate(self.drafts):
                d.audit.note(int(self.store.length[i]), int(dropped[i]))
                d.evicted |= bool(dropped[i])
                watch = d.group.sequence.watch
                if dropped[i] and watch is not None and not d.group.done.done():
                    with failing([d.group.done]):
                        tell(watch, self.store, i, dropped, "decode", d.index)
            logits.append(self.runner.adapter.logits(hidden[:, -1]))
        logits += self._admit()
        if logits:
            self._sample(torch.cat(logits))

    def abandon(self, group: Group) -> None:
        """Stop all work on a proposal (cancelled, failed or closed) at once."""
        if not group.done.done():
            group.done.cancel()
        group.waiting.clear()
        with contextlib.suppress(ValueError):
            self.groups.remove(group)
        if rows := [i for i, d in enumerate(self.drafts) if d.group is group]:
            self._remove(rows)

    def _admit(self) -> list[Tensor]:
        """Fork parked rows into free live rows; returns the logits of the new rows."""
        admitted: list[Tensor] = []
        while self.groups and len(self.drafts) < self.max_rows:
            group = self.groups[0]
            logits = group.sequence.logits
            if group.done.done() or group.sequence.closed or logits is None:
                self.groups.popleft()
                continue
            count = min(len(group.waiting), self.max_rows - len(self.drafts))
            first, row = len(self.drafts), group.sequence.row
            length = int(self.parked.store.length[row])
            self.store.reserve(first + count, length + 1)
            self.store.broadcast_from(self.parked.store, row, first, count)
            for draft in group.waiting[:count]:
                draft.fork_length = length
                self.drafts.append(draft)
            admitted.append(logits.expand(count, -1))
            del group.waiting[:count]
            if not group.waiting:
                self.groups.popleft()
        return admitted

    @torch.no_grad()
    def _sample(self, logits: Tensor) -> None:
        statistics = token_statistics(logits)
        device = logits.device
        chosen = torch.zeros(len(self.drafts), dtype=torch.long, device=device)
        by_sampling: dict[Sampling, list[int]] = {}
        for i, d in enumerate(self.drafts):
            by_sampling.setdefault(d.group.sampling, []).append(i)
        for sampling, rows in by_sampling.items():
            uniform = [self.drafts[i].uniform[len(self.drafts[i].token_ids)] for i in rows]
            u = torch.tensor(uniform, device=device)
            if len(by_sampling) == 1:
                chosen = sample(logits, sampling, u, statistics.largest)
            else:
                index = torch.tensor(rows, device=device)
                chosen[index] = sample(logits[index], sampling, u, statistics.largest[index])
        self._push(chosen.tolist(), statistics.entropy.tolist())

    def _push(self, chosen: list[int], entropies: list[float]) -> None:
        ended: list[int] = []
        for i, (draft, token, h) in enumerate(zip(self.drafts, chosen, entropies, strict=True)):
            group = draft.group
            if group.done.done():
                ended.append(i)  # cancelled, or a sibling failed
            elif not np.isfinite(h):
                self._fail(group)  # the head's doing, the cache is sound
                ended.append(i)
            elif self._ends(draft, token, h):
                ended.append(i)
        if ended:
            self._retire(ended)

    def _fail(self, group: Group) -> None:
        if not group.done.done():
            group.done.set_exception(self.runner.non_finite())

    @staticmethod
    def _ends(draft: Draft, token: int, h: float) -> bool:
        try:
            return draft.push(token, h) is not None
        except COMPONENT_FAILURES as error:
            # A detector's failure belongs to its proposal alone.
            draft.group.done.set_exception(error)
            return True

    def _retire(self, ended: list[int]) -> None:
        """Hold the caches of finished forks and close the gaps they leave in the live rows."""
        drafts = [self.drafts[i] for i in ended]
        adoptable = [
            (i, d)
            for i, d in zip(ended, drafts, strict=True)
            if d.stop not in (None, StopReason.ABORTED) and not d.group.done.done()
        ]
        if adoptable:
            start = min(0 if d.evicted else d.fork_length for _, d in adoptable)
            block = self.store.export([i for i, _ in adoptable], start)
            for j, (i, d) in enumerate(adoptable):
                length, logical, tracked = (
                    int(counter[i])
                    for counter in (self.store.length, self.store.logical, self.store.tracked)
                )
                d.group.sequence.forks[d.index] = HeldFork(
                    block, j, length, logical, d.audit, tracked=tracked
                )
        self._remove(ended)
        for d in drafts:
            d.group.close(d)

    def _remove(self, ended: Sequence[int]) -> None:
        """Swap-remove: the last live rows move into the gaps."""
        gone = set(ended)
        survivors = len(self.drafts) - len(gone)
        gaps = [i for i in sorted(gone) if i < survivors]
        movers = [i for i in range(survivors, len(self.drafts)) if i not in gone]
        self.store.copy_from(self.store, movers, gaps)
        for gap, mover in zip(gaps, movers, strict=True):
            self.drafts[gap] = self.drafts[mover]
        del self.drafts[survivors:]

"""LiveRows: the forks that decode now, of all problems together, one token per tick."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.forks import forks_for
from kvrescue.engine.parked import ParkedRows
from kvrescue.engine.runner import Runner, failing, tell
from kvrescue.engine.sampler import sample, token_statistics
from kvrescue.engine.sequence import Draft, Group
from kvrescue.engine.slots import SlotStore
from kvrescue.errors import COMPONENT_FAILURES
from kvrescue.sampling import Sampling
from kvrescue.types import StopReason

__all__ = ["LiveRows"]


class LiveRows:
    """Draft i decodes in fork i; forks lie in the first rows of the live store, so that a step
    reads the cache without a gather."""

    def __init__(self, runner: Runner, parked: ParkedRows, max_rows: int) -> None:
        self.runner = runner
        self.parked = parked
        self.max_rows = max_rows
        self.forks = forks_for(runner)
        self.drafts: list[Draft] = []
        self.groups: deque[Group] = deque()
        """Proposals with drafts that wait for a row, oldest first."""

    @property
    def store(self) -> SlotStore:
        return self.forks.store

    def step(self) -> None:
        """Advance every live draft by one token, and admit waiting ones (their first token needs
        no forward pass: the parked row knows its logits)."""
        logits: list[Tensor] = []
        if self.drafts:
            fed = np.array([d.token_ids[-1] for d in self.drafts], dtype=np.int64)
            hidden = self.forks.step(fed)
            for i in self.forks.sick(hidden):
                self._fail(self.drafts[i].group)
            dropped, lengths = self.forks.evict(), self.forks.lengths
            for i, d in enumerate(self.drafts):
                d.audit.note(int(lengths[i]), int(dropped[i]))
                d.evicted |= bool(dropped[i])
                watch = d.group.sequence.watch
                if dropped[i] and watch is not None and not d.group.done.done():
                    with failing([d.group.done]):
                        tell(watch, self.store, i, dropped, "decode", d.index)
            logits.append(self.runner.adapter.logits(hidden))
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

    def clear(self) -> None:
        """Forget all proposals and their forks."""
        self.groups.clear()
        self.drafts.clear()
        self.forks.clear()

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
            row = group.sequence.row
            length = int(self.parked.store.length[row])
            self.forks.fork(self.parked.store, row, count)
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
        adoptable = {
            i: d
            for i, d in zip(ended, drafts, strict=True)
            if d.stop not in (None, StopReason.ABORTED) and not d.group.done.done()
        }
        held = self.forks.hold(adoptable)
        for d, fork in zip(adoptable.values(), held, strict=True):
            d.group.sequence.forks[d.index] = fork
        self._remove(ended)
        for d in drafts:
            d.group.close(d)

    def _remove(self, ended: Sequence[int]) -> None:
        self.drafts = [self.drafts[i] for i in self.forks.remove(ended)]

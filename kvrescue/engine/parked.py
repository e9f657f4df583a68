"""ParkedRows: the persistent states, one per trajectory, and what is fed to them in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.runner import Runner, failing
from kvrescue.engine.sequence import Extension, HeldFork, ParkedSequence, Probe, right_pad
from kvrescue.engine.slots import SlotStore
from kvrescue.errors import PolicyError

__all__ = ["ParkedRows"]

_CHUNK = 512  # tokens of a long prompt fed per forward pass
_BATCH_TOKENS = 16384  # padded tokens per forward pass


class ParkedRows:
    """Owns the parked store; extensions advance a row, probes look ahead on throw-away copies."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.store = runner.store(0)
        self.extensions: deque[Extension] = deque()
        self.probes: deque[Probe] = deque()
        self._free: list[int] = []

    def take(self) -> int:
        """A free row."""
        if not self._free:
            rows = self.store.rows
            self.store.reserve(rows + 1, self.store.capacity)
            self._free = list(range(self.store.rows - 1, rows - 1, -1))
        return self._free.pop()

    def free(self, row: int) -> None:
        store = self.store
        store.length[row] = store.logical[row] = store.prefix[row] = 0
        self._free.append(row)

    def adopt(self, sequence: ParkedSequence, index: int) -> None:
        """The row takes the state of the held fork `index`."""
        fork = sequence.forks[index]
        self.store.adopt(sequence.row, fork.block, fork.index, fork.length, fork.logical)
        sequence.audit = fork.audit

    def run(self) -> None:
        """Run one batch of extensions and all probes."""
        if self.extensions:
            batch = self._next_batch()
            with failing(e.done for e in batch):
                self._extend(batch)
        if self.probes:
            probes = [p for p in self.probes if not (p.done.done() or p.sequence.closed)]
            self.probes.clear()
            with failing(p.done for p in probes):
                self._run_probes(probes)

    # -- extensions -----------------------------------------------------------------------------

    def _next_batch(self) -> list[Extension]:
        """As many queued extensions as fit one batch, at most one per sequence."""
        batch: list[Extension] = []
        later: deque[Extension] = deque()
        seen: set[int] = set()
        width = 0
        while self.extensions:
            e = self.extensions.popleft()
            if e.done.done() or e.sequence.closed:
                continue  # cancelled while waiting
            wider = max(width, min(len(e.tokens), _CHUNK))
            if id(e.sequence) in seen or (batch and wider * (len(batch) + 1) > _BATCH_TOKENS):
                later.append(e)
                continue
            seen.add(id(e.sequence))
            width = wider
            batch.append(e)
        self.extensions = later
        return batch

    def _scratch(self, rows: Sequence[int], extra: int) -> SlotStore:
        """A temporary store with copies of parked rows and room for `extra` more tokens."""
        longest = int(self.store.length[list(rows)].max(initial=0))
        scratch = self.runner.store(len(rows), longest + extra)
        scratch.copy_from(self.store, rows, range(len(rows)))
        return scratch

    def _extend(self, batch: list[Extension]) -> None:
        if not batch:
            return
        rows = [e.sequence.row for e in batch]
        longest = max(len(e.tokens) for e in batch)
        scratch = self._scratch(rows, longest)
        last: list[Tensor] = [torch.empty(0)] * len(batch)
        for at in range(0, longest, _CHUNK):
            tokens, counts = right_pad([e.tokens[at : at + _CHUNK] for e in batch])
            hidden = self.runner.forward(scratch, tokens, counts)
            for i in np.flatnonzero(counts).tolist():
                last[i] = hidden[i, counts[i] - 1]
        dropped = self.runner.evict(scratch, len(batch))
        self.store.reserve(self.store.rows, int(scratch.length.max()))
        self.store.copy_from(scratch, range(len(batch)), rows)
        logits = None
        if self.runner.adapter.head is not None:
            logits = self.runner.adapter.logits(torch.stack(last))
            finite = torch.isfinite(logits).all(dim=-1).tolist()
        for i, e in enumerate(batch):
            e.sequence.audit.note(int(scratch.length[i]), int(dropped[i]))
            if logits is not None:
                e.sequence.logits = logits[i]
            if e.done.done():
                continue
            if logits is not None and not finite[i]:
                e.done.set_exception(self.runner.non_finite())
            else:
                e.done.set_result(None)

    # -- probes ---------------------------------------------------------------------------------

    def _run_probes(self, probes: list[Probe]) -> None:
        jobs = [(p, i) for p in probes for i in range(len(p.continuations))]
        results: dict[Probe, list[Tensor]] = {p: [] for p in probes}
        size = max((len(p.continuations[i]) for p, i in jobs), default=1)
        step = max(1, _BATCH_TOKENS // max(1, size))
        for at in range(0, len(jobs), step):
            self._probe(jobs[at : at + step], results)
        for p in probes:
            if not p.done.done():
                p.done.set_result(results[p])

    def _probe(self, jobs: list[tuple[Probe, int]], results: dict[Probe, list[Tensor]]) -> None:
        rows = [p.sequence.row for p, _ in jobs]
        tokens, counts = right_pad([p.continuations[i] for p, i in jobs])
        scratch = self._scratch(rows, tokens.shape[1])
        start = int(scratch.length.min())
        hidden = self.runner.forward(scratch, tokens, counts)
        block = scratch.export(range(len(jobs)), start) if any(p.keep for p, _ in jobs) else None
        for row, (p, i) in enumerate(jobs):
            n = int(counts[row])
            if p.logprobs:
                fed = self._token_logprobs(p.sequence, hidden[row, :n], tokens[row, :n])
                results[p].append(fed)
            else:
                results[p].append(hidden[row, n - 1])
            if p.keep and block is not None:
                length, logical = int(scratch.length[row]), int(scratch.logical[row])
                audit = p.sequence.audit.copy()
                audit.note(length, 0)
                p.sequence.forks[i] = HeldFork(block, row, length, logical, audit)

    def _token_logprobs(self, sequence: ParkedSequence, hidden: Tensor, ids: np.ndarray) -> Tensor:
        """[n] log-probabilities of `ids` given the parked state, from `hidden` [n, hidden]."""
        if sequence.logits is None:
            raise PolicyError(f"{self.runner.adapter.name} has no language-model head")
        logits = torch.cat([sequence.logits[None], self.runner.adapter.logits(hidden[:-1])])
        chosen = torch.from_numpy(ids).to(logits.device)[:, None]
        return logits.log_softmax(dim=-1).gather(-1, chosen)[:, 0]

"""ParkedRows: the persistent states, one per trajectory, and what is fed to them in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvrescue.engine.runner import Runner, failing, tell
from kvrescue.engine.sequence import Extension, HeldFork, ParkedSequence, Probe, right_pad
from kvrescue.engine.slots import SlotStore
from kvrescue.errors import PolicyError

__all__ = ["ParkedRows"]

_CHUNK = 512  # tokens of a long prompt fed per forward pass
_BATCH_TOKENS = 16384  # padded tokens per forward pass


_PATIENCE = 12  # ticks that work waits at most for company
_SHARE = 2  # work of one in so many open sequences is company enough
_SPARE_BYTES = 512 << 20  # a temporary store up to this size is kept for the next batch
_BUNDLE_TOKENS = 512  # tokens of continuations side by side in one row


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Continuations of one probe that share a row for one forward pass; forks that share one while
    they decode are a pack (`kvrescue.engine.packs`)."""

    probe: Probe
    members: list[int]

    @property
    def tokens(self) -> list[int]:
        return [t for i in self.members for t in self.probe.continuations[i]]

    @property
    def branches(self) -> list[int]:
        return [i for i in self.members for _ in self.probe.continuations[i]]

    @property
    def width(self) -> int:
        return sum(len(self.probe.continuations[i]) for i in self.members)


def _bundles(probe: Probe) -> Iterator[_Bundle]:
    members: list[int] = []
    width = 0
    for i, continuation in enumerate(probe.continuations):
        if members and width + len(continuation) > _BUNDLE_TOKENS:
            yield _Bundle(probe, members)
            members, width = [], 0
        members.append(i)
        width += len(continuation)
    if members:
        yield _Bundle(probe, members)


def _batches(bundles: list[_Bundle]) -> Iterator[list[_Bundle]]:
    """Bundles in ascending width, cut where padding or size would grow too much."""
    batch: list[_Bundle] = []
    for bundle in bundles:
        wide = batch and bundle.width * (len(batch) + 1) > _BATCH_TOKENS
        uneven = batch and bundle.width > 8 + 1.5 * batch[0].width
        if wide or uneven:
            yield batch
            batch = []
        batch.append(bundle)
    if batch:
        yield batch


class ParkedRows:
    """Owns the parked store; extensions advance a row, probes look ahead on throw-away copies."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.store = runner.store(0)
        self.extensions: deque[Extension] = deque()
        self.probes: deque[Probe] = deque()
        self._free: list[int] = []
        self._spare: SlotStore | None = None
        self._waited = 0

    def take(self) -> int:
        """A free row."""
        if not self._free:
            rows = self.store.rows
            self.store.reserve(rows + 1, self.store.capacity)
            self._free = list(range(self.store.rows - 1, rows - 1, -1))
        return self._free.pop()

    def free(self, row: int) -> None:
        store = self.store
        for counter in store.COUNTERS:
            getattr(store, counter)[row] = 0
        self._free.append(row)

    def adopt(self, sequence: ParkedSequence, index: int) -> None:
        """The row takes the state of the held fork `index`."""
        fork = sequence.forks[index]
        self.store.adopt(
            sequence.row,
            fork.block,
            fork.index,
            fork.length,
            fork.logical,
            tracked=fork.tracked,
            first=fork.first,
            shift=fork.shift,
        )
        sequence.audit = fork.audit

    def due(self, open_sequences: int) -> bool:
        """Whether what waits should run in this tick.

        Problems fall out of step, so a few finish in every tick; a short wait lets more of them
        share a forward pass, whose cost hardly depends on their number. Nobody waits alone: the
        share that is enough shrinks with the number of open sequences.
        """
        waiting = len(self.extensions) + len(self.probes)
        self._waited = self._waited + 1 if waiting else 0
        if waiting and (_SHARE * waiting >= open_sequences or self._waited > _PATIENCE):
            self._waited = 0
            return True
        return False

    def run(self) -> None:
        """Run one batch of extensions and all probes."""
        for _ in range(2):  # own steps and foreign steps: all that usually waits
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
            own = min(len(e.tokens), _CHUNK)
            wider = max(width, own)
            # Single tokens (own steps) do not wait for, nor are padded to, whole foreign steps.
            uneven = batch and (own == 1) != (width == 1)
            full = batch and wider * (len(batch) + 1) > _BATCH_TOKENS
            if id(e.sequence) in seen or uneven or full:
                later.append(e)
                continue
            seen.add(id(e.sequence))
            width = wider
            batch.append(e)
        self.extensions = later
        return batch

    def _scratch(self, rows: Sequence[int], extra: int) -> SlotStore:
        """A temporary store with copies of parked rows and room for `extra` more tokens."""
        capacity = int(self.store.length[list(rows)].max(initial=0)) + extra
        spare = self._spare
        if spare is None or spare.rows < len(rows) or spare.capacity < capacity:
            room = (0, 0) if spare is None else (spare.rows, spare.capacity)
            self._spare = None  # before the next one is made: they are large
            spare = self.runner.store(max(len(rows), room[0]), max(capacity, room[1]))
            if spare.nbytes <= _SPARE_BYTES:
                self._spare = spare
        spare.copy_from(self.store, rows, range(len(rows)))
        return spare

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
        sick = self.runner.sick(scratch, torch.stack(last))
        for i in sick:
            if not batch[i].done.done():
                batch[i].done.set_exception(self.runner.non_finite())
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
            if dropped[i] and e.sequence.watch is not None:
                prompt = int(scratch.logical[i]) == len(e.tokens)
                with failing([e.done]):
                    tell(e.sequence.watch, scratch, i, dropped, "prompt" if prompt else "rebase")
            if e.done.done():
                continue
            if logits is not None and not finite[i]:
                e.done.set_exception(self.runner.non_finite())
            else:
                e.done.set_result(None)

    # -- probes ---------------------------------------------------------------------------------

    def _run_probes(self, probes: list[Probe]) -> None:
        """Continuations of one sequence share a row: its prefix is copied and read once."""
        results: dict[Probe, dict[int, Tensor]] = {p: {} for p in probes}
        bundles = [bundle for p in probes for bundle in _bundles(p)]
        bundles.sort(key=lambda bundle: bundle.width)  # rows of one batch are padded to the widest
        for batch in _batches(bundles):
            self._probe(batch, results)
        for p in probes:
            if not p.done.done():
                p.done.set_result([results[p][i] for i in range(len(p.continuations))])

    def _probe(self, bundles: list[_Bundle], results: dict[Probe, dict[int, Tensor]]) -> None:
        tokens, counts = right_pad([bundle.tokens for bundle in bundles])
        branches = np.full_like(tokens, -1)
        for row, bundle in enumerate(bundles):
            branches[row, : bundle.width] = bundle.branches
        scratch = self._scratch([bundle.probe.sequence.row for bundle in bundles], tokens.shape[1])
        lengths, logical = scratch.length.copy(), scratch.logical.copy()
        hidden = self.runner.forward(scratch, tokens, counts, branches)
        start = int(lengths.min())
        keep = any(bundle.probe.keep for bundle in bundles)
        block = scratch.export(range(len(bundles)), start) if keep else None
        self.runner.sick(scratch, hidden)
        for row, bundle in enumerate(bundles):
            p, at = bundle.probe, 0
            for i in bundle.members:
                n = len(p.continuations[i])
                part = hidden[row, at : at + n]
                if p.logprobs:
                    ids = tokens[row, at : at + n]
                    results[p][i] = self._token_logprobs(p.sequence, part, ids)
                else:
                    results[p][i] = part[-1]
                if p.keep and block is not None:
                    held, seen = int(lengths[row]), int(logical[row])
                    audit = p.sequence.audit.copy()
                    audit.note(held + n, 0)
                    p.sequence.forks[i] = HeldFork(
                        block, row, held + n, seen + n, audit, first=held, shift=at
                    )
                at += n

    def _token_logprobs(self, sequence: ParkedSequence, hidden: Tensor, ids: np.ndarray) -> Tensor:
        """[n] log-probabilities of `ids` given the parked state, from `hidden` [n, hidden]."""
        if sequence.logits is None:
            raise PolicyError(f"{self.runner.adapter.name} has no language-model head")
        logits = torch.cat([sequence.logits[None], self.runner.adapter.logits(hidden[:-1])])
        chosen = torch.from_numpy(ids).to(logits.device)[:, None]
        return logits.log_softmax(dim=-1).gather(-1, chosen)[:, 0]

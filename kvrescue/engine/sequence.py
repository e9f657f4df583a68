"""Handles of the engine: a parked sequence, a fork that is being decoded, a finished fork."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from kvrescue.detectors.base import Detector
from kvrescue.engine.candidate import GrowingCandidate
from kvrescue.engine.sampler import uniforms
from kvrescue.engine.slots import KVBlock
from kvrescue.engine.text import TokenText
from kvrescue.evictors.audit import Audit
from kvrescue.evictors.firing import Watch
from kvrescue.sampling import Sampling
from kvrescue.types import StopReason

__all__ = ["Draft", "Extension", "Group", "HeldFork", "ParkedSequence", "Probe", "right_pad"]


@dataclass(frozen=True, slots=True)
class HeldFork:
    """Cache of a finished fork, without its last token (which was sampled, not yet fed)."""

    block: KVBlock
    index: int
    length: int
    logical: int
    audit: Audit
    first: int | None = None
    """Slot from which on it differs from its parent; None: where the block starts."""
    shift: int = 0
    """How much further on in the block those slots lie (branches packed into one row)."""
    tracked: int = 0
    """Entries whose state a score tracker knows."""


@dataclass(eq=False, slots=True)
class ParkedSequence:
    """A trajectory's persistent state: one parked row and the logits that follow it."""

    row: int
    logits: Tensor | None = None
    """[vocab] float32 after the last fed token; None for engines without an LM head."""
    audit: Audit = field(default_factory=Audit)
    forks: dict[int, HeldFork] = field(default_factory=dict)
    """Finished forks by candidate index, until the next commit or proposal."""
    closed: bool = False
    watch: Watch | None = None
    """Told of every eviction of the row and of its forks; None: nobody listens."""


@dataclass(eq=False, slots=True)
class Extension:
    """Feed `tokens` to a parked sequence (open, commit)."""

    sequence: ParkedSequence
    tokens: Sequence[int]
    done: asyncio.Future[None]


@dataclass(eq=False, slots=True)
class Probe:
    """Feed each of `continuations` to its own temporary fork of a parked sequence.

    `done` resolves to hidden states after the last token [n, hidden] or, with `logprobs`, to one
    [len] tensor per continuation: log-probabilities of its tokens.
    """

    sequence: ParkedSequence
    continuations: Sequence[Sequence[int]]
    logprobs: bool
    keep: bool
    done: asyncio.Future[list[Tensor]]


class Draft(GrowingCandidate):
    """A candidate in a live row."""

    def __init__(
        self,
        group: Group,
        index: int,
        seed: int,
        pieces: TokenText,
        eos: frozenset[int],
        carry: str,
    ) -> None:
        super().__init__(
            index,
            seed,
            pieces=pieces,
            eos=eos,
            separator=group.sampling.separator,
            carry=carry,
            detectors=group.detectors,
            cap=group.cap,
            cap_reason=group.cap_reason,
        )
        self.group = group
        self.uniform = uniforms(seed, group.cap)
        self.audit = group.sequence.audit.copy()
        self.fork_length = 0
        self.evicted = False


@dataclass(eq=False, slots=True)
class Group:
    """The candidates of one proposal; resolves when all have ended."""

    sequence: ParkedSequence
    sampling: Sampling
    detectors: Sequence[Detector]
    cap: int
    cap_reason: StopReason
    done: asyncio.Future[list[Draft]]
    waiting: list[Draft] = field(default_factory=list)
    finished: list[Draft] = field(default_factory=list)
    size: int = 0

    def close(self, draft: Draft) -> None:
        """Count a finished draft; the last one resolves the proposal."""
        self.finished.append(draft)
        if len(self.finished) == self.size and not self.done.done():
            self.done.set_result(sorted(self.finished, key=lambda d: d.index))


def right_pad(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [rows, longest] padded with 0, and the counts [rows]."""
    counts = np.array([len(r) for r in rows], dtype=np.int64)
    tokens = np.zeros((len(rows), max(1, int(counts.max(initial=0)))), dtype=np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return tokens, counts

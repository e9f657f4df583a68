"""VLLMEngine: sequences, forks and proposals on vLLM, with the torch engine's interface.

Protocol. A trajectory's state is a held cache. A candidate is a request that forks it; when it
ends by itself its cache is held under a name of its own. Committing an own step renames: the
candidate's cache becomes the state, and its last token, which was sampled but not fed, is fed by
the next forks. Prompts and foreign steps are fed in a request of their own, evicted, and held
together with the logits that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvrescue.detectors.base import Detector
from kvrescue.engine.text import TokenText
from kvrescue.errors import CapacityError, PolicyError
from kvrescue.evictors.audit import check_fired
from kvrescue.evictors.base import Evictor
from kvrescue.policies.vllm.admission import Admission
from kvrescue.policies.vllm.draft import VLLMDraft
from kvrescue.policies.vllm.driver import Driver
from kvrescue.policies.vllm.messages import Ledger, Ticket
from kvrescue.sampling import Sampling
from kvrescue.types import CacheStats, StopReason

__all__ = ["VLLMEngine", "VLLMSequence"]


@dataclass(frozen=True, slots=True)
class HeldFork:
    """A finished candidate: its tokens, and the name of its cache (None without an evictor)."""

    tokens: list[int]
    state: str | None


@dataclass(eq=False, slots=True)
class VLLMSequence:
    """A trajectory: its tokens, and the held caches that belong to it."""

    tokens: list[int]
    prefix: int = 0
    state: str | None = None
    unfed: list[int] = field(default_factory=list)
    """Lengths of the pieces at the end of `tokens` that the state has not seen."""
    forks: dict[int, HeldFork] = field(default_factory=dict)
    """Finished candidates by index, until the next commit or proposal."""
    width: int = 0
    """Candidates that blocks are promised for."""
    adopted: bool = False
    """The last token of an adopted candidate is yet to be given to `extend`."""
    closed: bool = False
    working: set[str] = field(default_factory=set)
    """Requests that run for it now."""


class VLLMEngine:
    """What TorchPolicy's engine is to torch: open, propose, adopt, extend, close, stats.

    `candidates` is how many candidates per sequence blocks are promised for when it opens.
    """

    def __init__(
        self,
        vllm_config: Any,
        *,
        name: str,
        evictor: Evictor | None,
        pieces: TokenText,
        eos: frozenset[int],
        candidates: int,
    ) -> None:
        self.evictor = evictor
        self.pieces = pieces
        self.eos = eos
        self.candidates = candidates
        self.driver = Driver(vllm_config, name)
        self.max_context = int(vllm_config.model_config.max_model_len)
        self.vocab_size = int(vllm_config.model_config.get_vocab_size())
        self.block_size = int(vllm_config.cache_config.block_size)
        self._open: set[VLLMSequence] = set()
        self.admission: Admission | None = None
        if evictor is not None:
            blocks = self.driver.scheduler.free_blocks
            self.admission = Admission(blocks, lambda: self.driver.steps)

    # -- operations -----------------------------------------------------------------------------

    async def open(self, tokens: Sequence[int]) -> VLLMSequence:
        """Start a sequence: full attention over `tokens`, then eviction.

        Waits while the blocks of the sequences that are open leave no room for another.
        """
        sequence = VLLMSequence(list(tokens), unfed=[len(tokens)])
        if self.evictor is not None:
            if self.evictor.protect_prompt:
                sequence.prefix = len(tokens)
            await self._promise(sequence)
        self._open.add(sequence)
        try:
            await self._feed(sequence)
        except BaseException:
            self.close(sequence, audit=False)
            raise
        return sequence

    async def extend(self, sequence: VLLMSequence, tokens: Sequence[int]) -> None:
        """Feed `tokens` in one forward pass, then evict (law 6); none: only drop the forks.

        The last token of an adopted candidate is only noted: the next forks feed it.
        """
        self._check_open(sequence)
        self._release_forks(sequence)
        if len(sequence.tokens) + len(tokens) > self.max_context:
            raise CapacityError(
                f"{self.driver.name}: {len(sequence.tokens) + len(tokens)} tokens exceed the "
                f"context of {self.max_context}"
            )
        if not tokens:
            return
        sequence.tokens += tokens
        sequence.unfed.append(len(tokens))
        lazy, sequence.adopted = sequence.adopted and len(tokens) == 1, False
        # A full context takes no further token, and vLLM no request without room for one.
        if not lazy and len(sequence.tokens) < self.max_context:
            await self._feed(sequence)

    async def propose(
        self,
        sequence: VLLMSequence,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        cap: int,
        cap_reason: StopReason,
        carry: str = "",
    ) -> list[VLLMDraft]:
        """Decode one fork per seed until each ends; the forks stay held on the sequence."""
        self._check_open(sequence)
        self._release_forks(sequence)
        self._widen(sequence, len(seeds))
        tickets: list[Ticket] = []
        for index, seed in enumerate(seeds):
            draft = VLLMDraft(
                index,
                seed,
                pieces=self.pieces,
                eos=self.eos,
                separator=sampling.separator,
                carry=carry,
                detectors=detectors,
                cap=cap,
                cap_reason=cap_reason,
            )
            hold = self.driver.new_name() if self.evictor is not None else None
            tickets.append(
                Ticket(self.driver.new_name(), fork=sequence.state, hold=hold, draft=draft)
            )
        try:
            await self._run(
                sequence,
                [
                    (t, {"sampling": sampling, "seed": seed, "max_tokens": cap})
                    for t, seed in zip(tickets, seeds, strict=True)
                ],
            )
        except BaseException:
            self._release(*(t.hold for t in tickets))
            raise
        drafts = [t.draft for t in tickets if t.draft is not None]
        for draft, ticket in zip(drafts, tickets, strict=True):
            if draft.adoptable:
                sequence.forks[draft.index] = HeldFork(draft.token_ids, ticket.hold)
        return drafts

    def adopt(self, sequence: VLLMSequence, index: int) -> None:
        """The sequence's state becomes the fork `index`, without its last token: extend by it."""
        self._check_open(sequence)
        fork = sequence.forks.pop(index)
        self._release_forks(sequence)
        sequence.tokens += fork.tokens[:-1]
        sequence.adopted = True
        self._release(sequence.state)
        sequence.state, sequence.unfed = fork.state, []

    def close(self, sequence: VLLMSequence, *, audit: bool = True) -> None:
        """Free everything; idempotent. Raises AuditError (law 10) after freeing."""
        if sequence.closed:
            return
        stats = self.stats(sequence)
        sequence.closed = True
        self._open.discard(sequence)
        self.driver.abort(list(sequence.working))
        self._release_forks(sequence)
        self._release(sequence.state)
        sequence.state = None
        if self.admission is not None:
            self.admission.give(self._unit(sequence) * (1 + sequence.width))
        if audit:
            check_fired(self.evictor, stats)

    def stats(self, sequence: VLLMSequence) -> CacheStats:
        """Audit of a sequence's own state, as if its last token had been fed, too."""
        logical = len(sequence.tokens)
        if self.evictor is None:
            return CacheStats(logical, logical, logical)
        held = self.driver.scheduler.held.get(sequence.state)
        audit = held.account.audit.copy() if held is not None else Ledger()
        keep = self.evictor.bound + sequence.prefix
        for tokens in sequence.unfed:
            audit.fed(tokens, keep, self.evictor.interval)
        return CacheStats(
            logical_length=logical,
            physical_length=audit.length,
            peak_physical=audit.peak,
            evictions=audit.evictions,
            dropped=audit.dropped,
            bound=keep,
        )

    @property
    def in_use(self) -> dict[str, int]:
        """Sequences, requests, states and blocks in use; all zero when everything is closed."""
        scheduler = self.driver.scheduler
        evicts = self.admission is not None
        return {
            "open": len(self._open),
            "requests": len(scheduler.tickets),
            "held": len(scheduler.held) if evicts else 0,
            "blocks": self.admission.total - scheduler.free_blocks if self.admission else 0,
            "promised": self.admission.promised if self.admission else 0,
        }

    # -- states ---------------------------------------------------------------------------------

    def _check_open(self, sequence: VLLMSequence) -> None:
        if sequence.closed:
            raise PolicyError(f"{self.driver.name}: the sequence is closed")

    async def _feed(self, sequence: VLLMSequence) -> None:
        """Feed what the state has not seen, piece by piece: each is evicted on its own."""
        if self.evictor is None:
            await self._warm(sequence)
            return
        while sequence.unfed:
            unseen = sum(sequence.unfed[1:])
            tokens = sequence.tokens[: len(sequence.tokens) - unseen]
            ticket = Ticket(
                self.driver.new_name(),
                fork=sequence.state,
                hold=self.driver.new_name(),
                keep_logits=True,
                prefix=sequence.prefix,
            )
            extra = await self._stretch(sequence, sequence.unfed[0])
            try:
                await self._run(sequence, [(ticket, {"tokens": tokens})])
            except BaseException:
                self._release(ticket.hold)
                raise
            finally:
                if self.admission is not None and extra:
                    self.admission.give(extra)
            self._release(sequence.state)
            sequence.state = ticket.hold
            del sequence.unfed[0]

    async def _warm(self, sequence: VLLMSequence) -> None:
        """Without an evictor: put long pieces into the prefix cache, which holds whole blocks;
        otherwise every one of the next candidates would compute them for itself."""
        pieces, sequence.unfed = sequence.unfed, []
        if max(pieces, default=0) >= self.block_size:
            await self._run(
                sequence, [(Ticket(self.driver.new_name()), {"tokens": sequence.tokens})]
            )

    async def _run(
        self, sequence: VLLMSequence, requests: Sequence[tuple[Ticket, dict[str, Any]]]
    ) -> None:
        """Run requests to their end; if one fails, or the caller is cancelled, stop them all."""
        names = [ticket.name for ticket, _ in requests]
        sequence.working.update(names)
        try:
            futures = [
                self.driver.submit(options.pop("tokens", sequence.tokens), ticket, **options)
                for ticket, options in requests
            ]
            await asyncio.gather(*futures)
        except BaseException:
            self.driver.abort(names)
            raise
        finally:
            sequence.working.difference_update(names)

    def _release(self, *names: str | None) -> None:
        if self.evictor is not None:
            for name in names:
                if name is not None:
                    self.driver.scheduler.release(name)

    def _release_forks(self, sequence: VLLMSequence) -> None:
        self._release(*(fork.state for fork in sequence.forks.values()))
        sequence.forks.clear()

    # -- blocks ---------------------------------------------------------------------------------

    def _blocks(self, entries: int) -> int:
        return -(-entries // self.block_size)

    def _unit(self, sequence: VLLMSequence) -> int:
        """Blocks that one state or candidate of the sequence can ever hold."""
        if self.evictor is None:
            return 0
        return self._blocks(self.evictor.bound + sequence.prefix + self.evictor.interval)

    async def _promise(self, sequence: VLLMSequence) -> None:
        """Blocks for the state and the candidates of a new sequence."""
        if self.admission is None:
            return
        sequence.width = self.candidates
        need = self._unit(sequence) * (1 + sequence.width)
        await self.admission.wait(
            need,
            "raise kv_cache_bytes, or lower candidates, the evictor's budget or the number of "
            "problems at a time",
        )

    async def _stretch(self, sequence: VLLMSequence, tokens: int) -> int:
        """More blocks while a long piece is fed; returns how many to give back."""
        if self.admission is None:
            return 0
        unit = self._unit(sequence)
        parent = unit if sequence.state is not None else 0
        need = parent + self._blocks(unit * self.block_size * (parent > 0) + tokens)
        extra = max(0, need - unit * (1 + sequence.width))
        if extra:
            await self.admission.wait(
                extra,
                "raise kv_cache_bytes, or shorten the prompt or the steps",
                urgent=True,
            )
        return extra

    def _widen(self, sequence: VLLMSequence, candidates: int) -> None:
        more = candidates - sequence.width
        if self.admission is not None and more > 0:
            self.admission.take(
                self._unit(sequence) * more,
                f"start the policy with candidates={candidates}, or raise kv_cache_bytes",
            )
            sequence.width = candidates

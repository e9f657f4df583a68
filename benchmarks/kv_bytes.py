"""Bytes of the keys and values that engines hold while candidates decode, against Appendix D.

What is counted are tensors: at the last token of a step, while all candidates live, the slots that
every row of an engine fills. The formulas are those of `kvrescue.cost`, which reproduces Eqs. 8 to
11. A token that was drawn and not yet fed is no part of the context. Appendix D counts a whole
cache per candidate, so what is compared with it byte by byte does not share prefixes; what sharing
makes of it is a ratio of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from benchmarks.decoding import TEXT, Rows, Stamp, endless
from benchmarks.ratios import Goal, Ratio, Side, Size
from kvrescue.cost import CostModel, shape_of
from kvrescue.engine.packs import WIDTH
from kvrescue.engine.slots import SlotStore
from kvrescue.evictors import RKV, Evictor

__all__ = ["Held", "held", "ratios"]

BUDGET, WINDOW, CANDIDATES, STEP = 64, 32, 8, 16
BASE, HELPER = "tiny/base", "tiny/helper"


@dataclass(frozen=True)
class Held:
    """Bytes of one engine while a step's candidates live."""

    filled: int
    """Keys and values in the filled slots of the candidates' rows."""
    allocated: int
    """Keys and values of all rows and slots, the parked trajectory's included."""
    everything: int
    """The same with all that is kept beside keys and values: positions, order, queries, scores."""
    length: int
    """Tokens of context, evicted ones included."""
    element: int
    """Bytes of one number."""


def held(model: str, evictor: Evictor | None, length: int, share: bool = False) -> Held:
    """What is held at `length` tokens of context, with so many of them decoded as a step has."""
    side = endless(model, evictor, share_prefix=share)
    text = [int(t) for t in side.tokenizer.encode(TEXT * (length // 8 + 8))]
    rows = Rows(side, CANDIDATES)
    rows.open([text[: length - STEP + 1]])
    engine = rows.engine
    before = int(engine.parked.store.logical[rows.sequences[0].row])
    seen: list[Held] = []

    def look() -> None:
        live, parked = engine.live.store, engine.parked.store
        filled = sum(_filled(live, row) for row in range(engine.live.forks.rows))
        seen.append(
            Held(
                filled,
                live.nbytes + parked.nbytes,
                sum(map(_bytes, _tensors(live) + _tensors(parked))),
                before + len(engine.live.drafts[0].token_ids) - 1,
                live.keys.element_size(),
            )
        )

    rows.decode(STEP, Stamp(call=look))
    rows.close()
    return seen[-1]


def _filled(store: SlotStore, row: int) -> int:
    used = int(store.length[row])
    return sum(_bytes(t[row, :, :, :used]) for t in (store.keys, store.values))


def _tensors(store: SlotStore) -> list[Tensor]:
    return [*store.entries.values(), *store.heads.values()]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def ratios(size: Size) -> list[Ratio]:
    bound = BUDGET + WINDOW
    lengths = size.pick((bound // 2, bound, 2 * bound, 4 * bound, 8 * bound), (bound, 4 * bound),
                        (bound, 2 * bound))  # fmt: skip
    rkv = RKV(budget=BUDGET, window=WINDOW)
    evicted = [held(BASE, rkv, length) for length in lengths]
    full = [held(BASE, None, length) for length in lengths]
    helper = [held(HELPER, None, length) for length in lengths]
    shared = [held(BASE, None, length, share=True) for length in lengths]
    helping = [held(HELPER, None, length, share=True) for length in lengths]
    models = [
        CostModel(
            base=shape_of(BASE),
            helper=shape_of(HELPER),
            n=CANDIDATES,
            length=h.length,
            budget=BUDGET,
            window=WINDOW,
            kv_element_bytes=h.element,
        )
        for h in evicted
    ]

    def formula(method: str) -> tuple[float, ...]:
        return tuple(float(sum(m.kv_bytes(method).values())) for m in models)

    def numbers(of: list[Held], what: Callable[[Held], int]) -> tuple[float, ...]:
        return tuple(float(what(h)) for h in of)

    rescue, sharing = (
        tuple(float(e.filled + h.filled) for e, h in zip(evicted, of, strict=True))
        for of in (helper, helping)
    )
    allocated = (numbers(of, lambda h: h.allocated) for of in (evicted, full))
    exact = Goal("exactly", 1)
    equal = "At 1, eviction frees what the paper says it frees, byte by byte, at every length."
    spare = (
        "What the allocator has for it: slots that are not filled yet, rows for more candidates, "
        "and the parked trajectory that candidates are forked from, which Appendix D leaves out."
    )
    used = "the peak memory of the process: weights, activations and spare slots come to it."
    small = "what it would be with many problems at once, whose rows share what is spare."
    once = (
        "Candidates without an evictor share what was there before their step: it is held once "
        f"for {WIDTH} of them."
    )
    twice = "what is held in all: the parked trajectory is left out here as above, and equals it."
    rows = (
        ("evicted best-of-N: held", numbers(evicted, lambda h: h.filled), "evicted_best_of_n",
         exact, equal, used),
        ("full best-of-N: held", numbers(full, lambda h: h.filled), "full_best_of_n",
         exact, "The same without eviction.", used),
        ("KV-Rescue: held", rescue, "kv_rescue", exact,
         "The same for the evicted base and the helper's full cache together.", used),
        ("full best-of-N, shared prefix: held", numbers(shared, lambda h: h.filled),
         "full_best_of_n", None, once, twice),
        ("KV-Rescue, shared prefix: held", sharing, "kv_rescue", None,
         "The same for the evicted base, which shares nothing, and the helper together.", twice),
        ("evicted best-of-N: allocated", next(allocated), "evicted_best_of_n", None, spare, small),
        ("full best-of-N: allocated", next(allocated), "full_best_of_n", None, spare, small),
        ("evicted best-of-N: with bookkeeping", numbers(evicted, lambda h: h.everything),
         "evicted_best_of_n", None, "Positions, order, recent queries and what R-KV remembers "
         "for its next scores come to keys and values.", "a share that holds for other heads: "
         "with wider heads and more numbers per entry it falls."),
    )  # fmt: skip
    return [
        Ratio(
            name=f"{name} over Appendix D",
            above=Side("tensors", measured),
            below=Side("Appendix D", formula(method)),
            unit=f"bytes for {CANDIDATES} candidates of one problem, a length of context per turn",
            clock="none",
            goal=goal,
            means=means,
            means_not=means_not,
        )
        for name, measured, method, goal, means, means_not in rows
    ]

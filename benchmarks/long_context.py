"""Time of a decode step at 4096 tokens of context against 1024, evicted and with full KV.

Full KV is measured with a cache for each candidate, as the paper counts it, and with the prefix
that the engine's candidates share.
"""

from __future__ import annotations

from benchmarks.decoding import MODEL, TEXT, Rows, endless
from benchmarks.ratios import Goal, Ratio, Side, Size, in_turns
from kvrescue.evictors import RKV, Evictor

__all__ = ["ratios"]

BUDGET, WINDOW = 64, 128
PIECE = 256
"""Tokens that a trajectory grows by at once, as by long steps."""


def ratios(size: Size) -> list[Ratio]:
    short, long = size.pick((1024, 4096), (512, 2048), (256, 512))
    tokens, live = size.pick(8, 8, 4), size.pick(4, 4, 2)
    model = size.pick(MODEL, MODEL, "tiny/base")
    kinds: dict[str, tuple[Evictor | None, bool]] = {
        "evicted": (RKV(budget=BUDGET, window=WINDOW), False),
        "full KV": (None, False),
        "full KV, shared prefix": (None, True),
    }
    sides: dict[tuple[str, int], Rows] = {}
    for name, (evictor, share) in kinds.items():
        for length in (short, long):
            side = endless(model, evictor, max_context=long + 64, share_prefix=share)
            text = [int(t) for t in side.tokenizer.encode(TEXT * (length // 8))]
            sides[name, length] = Rows(side, live)
            if share:
                sides[name, length].copy(sides["full KV", length])
            else:
                sides[name, length].open([text[:length]], PIECE)
    found = in_turns(
        {f"{name}, {n}": lambda r=rows: r.step(tokens) for (name, n), rows in sides.items()},
        size.pick(2, 2, 1),
        warm_up=[f"evicted, {short}", f"evicted, {long}"],
    )
    texts = {
        "evicted": (
            "Evicted decoding takes as long at any length of context: 1 is flat.",
            "that it is quicker than full KV at this length; the last two ratios say.",
        ),
        "full KV": (
            "What the same growth of context costs without eviction.",
            "the memory that it takes; see kv_bytes.",
        ),
        "full KV, shared prefix": (
            "The same where the candidates read what was there before their step once.",
            "many problems with one candidate each: they have nothing to share.",
        ),
    }
    table = [
        Ratio(
            name=f"{name}: step at {long} over step at {short}",
            above=Side(f"{name}, {long} tokens", found[f"{name}, {long}"]),
            below=Side(f"{name}, {short} tokens", found[f"{name}, {short}"]),
            unit=f"seconds per decode step of {live} rows",
            clock="cpu",
            goal=Goal("at most", 1.1) if name == "evicted" else None,
            means=texts[name][0],
            means_not=texts[name][1],
        )
        for name in kinds
    ]
    table += [
        Ratio(
            name=f"{name} over evicted, step at {length}",
            above=Side(name, found[f"{name}, {length}"]),
            below=Side(f"R-KV {BUDGET} + {WINDOW}, every token", found[f"evicted, {length}"]),
            unit=f"seconds per decode step of {live} rows",
            clock="cpu",
            means="Above 1, decoding with eviction after every token is quicker.",
            means_not="what a GPU does, where memory is read at another speed than arithmetic is "
            "done.",
        )
        for name in ("full KV", "full KV, shared prefix")
        for length in (short, long)
    ]
    return table

"""Time of one `select` from scratch per evictor, for the shapes of a decoding engine.

Keys have a common mean, as real keys do (most pairs exceed the similarity threshold); `R-KV, keys
apart` is R-KV's worst case, zero-mean keys without any match.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.ratios import Ratio, Side, Size, in_turns, seconds
from kvrescue.evictors import H2O, RKV, Evictor, KVSlice, RandomEviction, SnapKV, StreamingLLM

__all__ = ["ratios", "slice_for"]

OBSERVATION = 8
BUDGET, WINDOW = 64, 128


def slice_for(rows: int, common: float) -> KVSlice:
    """One entry more than the bound, the steady state of decoding, with SmolLM2's heads."""
    kv_heads, q_heads, dim, length = 3, 9, 64, BUDGET + WINDOW + 1
    made = torch.Generator().manual_seed(0)
    keys = torch.randn(rows, kv_heads, length, dim, generator=made)
    keys += common * torch.randn(rows, kv_heads, 1, dim, generator=made)
    return KVSlice(
        keys=keys,
        queries=torch.randn(rows, q_heads, OBSERVATION, dim, generator=made),
        positions=torch.arange(length).expand(rows, kv_heads, length),
        attention=torch.rand(rows, kv_heads, length, generator=made),
    )


def ratios(size: Size) -> list[Ratio]:
    layers, sequences = 30, size.pick(16, 4, 1)
    given = {"budget": BUDGET, "window": WINDOW, "observation": OBSERVATION}
    near, apart = (slice_for(layers * sequences, common) for common in (1.5, 0.0))
    sides: dict[str, tuple[Evictor, KVSlice]] = {
        "StreamingLLM": (StreamingLLM(**given), near),
        "random": (RandomEviction(**given), near),
        "H2O": (H2O(**given), near),
        "SnapKV": (SnapKV(**given), near),
        "R-KV": (RKV(**given), near),
        "R-KV, keys apart": (RKV(**given), apart),
    }
    found = in_turns(
        {
            name: partial(seconds, partial(evictor.select, kv))
            for name, (evictor, kv) in sides.items()
        },
        size.pick(5, 3, 1),
    )
    return [
        Ratio(
            name=f"{name} over StreamingLLM",
            above=Side(name, found[name]),
            below=Side("StreamingLLM", found["StreamingLLM"]),
            unit=f"seconds per select of {sequences} rows with {BUDGET + WINDOW + 1} entries in "
            f"{layers} layers of 3 KV heads",
            clock="cpu",
            means="Scoring and choosing from scratch, against the cheapest scores there are: "
            "positions.",
            means_not="what a decode step pays: there R-KV's scores are kept up to date instead; "
            "see eviction.",
        )
        for name in sides
        if name != "StreamingLLM"
    ]

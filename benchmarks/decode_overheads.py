"""What an evictor adds to a decode step: SmolLM2-135M, 32 live candidates.

The forks of a sequence decode the same number of tokens (no separator, no EOS) on engines that
differ in the evictor only. The unit is the decode step without an evictor, over a
cache that is as long (B' entries when decoding starts); evicted sides start with a prompt that is
longer by one window, so that eviction has fired before and fires at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.decoding import MODEL, TEXT, Rows, endless
from benchmarks.ratios import Goal, Ratio, Side, Size, in_turns
from kvrescue.detectors import Detector
from kvrescue.evictors import RKV, Evictor
from kvrescue.policies import TorchPolicy

__all__ = ["FORKS", "MODEL", "SEQUENCES", "TEXT", "decode", "plain_rows", "ratios"]

SEQUENCES, FORKS = 8, 8
BUDGET, WINDOW = 64, 128
BOUND = BUDGET + WINDOW

_NOT = {
    "every token": "what eviction costs on a larger model: its own arithmetic weighs more there.",
    "every 16 tokens": "that results are the same: up to 15 entries more than B' are held between.",
}


async def decode(
    side: TorchPolicy, prompt: list[int], tokens: int, detectors: Sequence[Detector]
) -> float:
    """Seconds per decode step on the wall, of eight sequences with eight forks of `prompt`."""
    rows = Rows(side, FORKS)
    await rows.open_all([prompt] * SEQUENCES)
    took = await rows.step_of(tokens, detectors, "wall")
    rows.close()
    return took


def plain_rows(size: Size) -> Rows:
    """The rows without an evictor, of which everything here is a share: a cache for each, as with
    an evictor."""
    return _rows(size, None)


def _rows(size: Size, evictor: Evictor | None) -> Rows:
    model = size.pick(MODEL, MODEL, "tiny/base")
    side = endless(model, evictor, share_prefix=False)
    ids = [int(t) for t in side.tokenizer.encode(TEXT * (BOUND // 8))]
    rows = Rows(side, size.pick(32, 16, 4))
    rows.open([ids[: BOUND if evictor is None else BOUND + WINDOW]])
    return rows


def ratios(size: Size) -> list[Ratio]:
    given = {"budget": BUDGET, "window": WINDOW}
    evictors: dict[str, tuple[Evictor, Goal | None]] = {
        "R-KV, every token": (RKV(**given), Goal("at most", 1.5)),
        "R-KV, every 16 tokens": (RKV(**given, interval=16), Goal("at most", 1.1)),
    }
    sides = {"no evictor": plain_rows(size)}
    sides |= {name: _rows(size, evictor) for name, (evictor, _) in evictors.items()}
    # 18 tokens have 16 that are counted, of which one makes the interval of 16 fire.
    tokens = dict.fromkeys(sides, size.pick(8, 8, 4))
    tokens["R-KV, every 16 tokens"] = size.pick(18, 18, 4)
    # No side warms up: the evictors have fired already, when the sequence was opened.
    found = in_turns(
        {
            name: lambda rows=rows, count=tokens[name]: rows.step(count)
            for name, rows in sides.items()
        },
        size.pick(2, 2, 1),
        warm_up=(),
    )
    live = len(sides["no evictor"].sequences) * sides["no evictor"].forks
    return [
        Ratio(
            name=f"{name}: step over a step without an evictor",
            above=Side(name, found[name]),
            below=Side("no evictor", found["no evictor"]),
            unit=f"seconds per decode step of {live} rows, B' = {BOUND}",
            clock="cpu",
            goal=goal,
            means="What choosing and replacing entries adds to a decode step over a full cache of "
            "the same length: 1.22 is 22 % more.",
            means_not=_NOT[name.partition(", ")[2]],
        )
        for name, (_, goal) in evictors.items()
    ]

"""alpha of the paper's Appendix D: what eviction costs per token, in attention passes.

Eq. 13 charges an evicted token C_dense + (1 + alpha) C_attn(B'): alpha is the time that the evictor
takes for one token over the time of the attention of one token over the B' = budget + window
entries of its cache, both summed over layers and heads. The paper finds 2.9 for R-KV.

Here both are measured side by side on the engine's own cache, with the geometry of a model but
without its weights: attention is what `slot_attention` does for one new token per row, without
writing the cache; eviction is all that `Eviction.fire` does (scores, choice, moving entries and the
tracker's memory), divided by the interval, because it fires once per interval. Not counted: that an
evicted row also notes the positions, order and queries of its new entries. A turn does both for one
cache, in alternation; sides take turns; the median over turns of the ratio is reported. CPU time of
the process counts, not the clock on the wall. Keys share a mean, as a model's do, so that most
entries have a match; `--apart` takes keys without one, R-KV's worst case.

Run by the suite, or alone:
OMP_NUM_THREADS=1 python -m benchmarks.alpha [--evictors rkv snapkv] [--shape smollm2]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.arguments import at_least, parser_of, told
from benchmarks.ratios import Goal, Ratio, Side, Size
from kvrescue.engine.adapter import ForwardBatch, slot_attention
from kvrescue.engine.eviction import Eviction
from kvrescue.engine.slots import KVShape, SlotStore
from kvrescue.evictors import RKV, Evictor, SnapKV, StreamingLLM

SHAPES = {
    # name: (layers, q_heads, kv_heads, head_dim); a layer is like another, so some stand for all
    "smollm2": (30, 9, 3, 64),
    "qwen2.5-7b": (4, 28, 4, 128),
}
KINDS: dict[str, type[Evictor]] = {"rkv": RKV, "snapkv": SnapKV, "streaming_llm": StreamingLLM}
"""streaming_llm scores nothing: what replacing an entry costs."""
INTERVALS, BUDGETS, WINDOW = (1, 16, 128), (64, 128, 256, 512), 128


class Cache:
    """Rows at their bound, as while decoding."""

    def __init__(self, evictor: Evictor, shape: str, rows: int, common: float, seed: int) -> None:
        layers, q_heads, kv_heads, dim = SHAPES[shape]
        self.eviction, self.rows = Eviction(evictor), rows
        tracker = self.eviction.tracker
        self.shape = KVShape(
            layers=layers,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=dim,
            dtype=torch.float32,
            device=torch.device("cpu"),
            observation=evictor.observation,
            entry_state=tracker.entry_state(dim) if tracker else {},
            head_state=tracker.head_state(dim) if tracker else {},
        )
        self.interval, self.common = evictor.interval, common
        self.store = SlotStore(self.shape, rows, evictor.bound + evictor.interval)
        self.generator = torch.Generator().manual_seed(seed)
        self.mean = self._randn(1, kv_heads, 1, dim)
        self.layers = [nn.Identity() for _ in range(layers)]
        for i, layer in enumerate(self.layers):
            layer.layer_idx = i  # type: ignore[assignment]
        self.append(evictor.bound + evictor.interval)
        for _ in range(2):  # the tracker begins, and goes on
            self.fire()
            self.append(self.interval)
        self.fire()

    def _randn(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=self.generator)

    def append(self, count: int) -> None:
        """Write `count` tokens into every row."""
        batch = ForwardBatch(self.store, np.full(self.rows, count), count)
        s = self.shape
        for layer in range(s.layers):
            key = self._randn(self.rows, s.kv_heads, count, s.head_dim) + self.common * self.mean
            query = self._randn(self.rows, s.q_heads, count, s.head_dim)
            batch.record(layer, query, key, self._randn(*key.shape))
        batch.advance()

    def fire(self) -> float:
        """CPU seconds of an eviction from all rows."""
        return cpu(lambda: self.eviction.fire(self.store, self.rows))

    def attend(self) -> float:
        """CPU seconds of the attention of one token per row over the cache, all layers."""
        s = self.shape
        # The newest entry is written again: the cache is as long after this as before.
        self.store.length -= 1
        batch = ForwardBatch(self.store, np.ones(self.rows, dtype=np.int64), 1)
        self.store.length += 1
        query = self._randn(self.rows, s.q_heads, 1, s.head_dim)
        slots = Written(batch)

        def run() -> None:
            for layer in self.layers:
                slot_attention(layer, query, query, query, None, slots=slots)  # type: ignore[arg-type]

        return cpu(run)


class Written:
    """A batch whose entries are in the cache."""

    def __init__(self, batch: ForwardBatch) -> None:
        self.store, self.counts, self.stop = batch.store, batch.counts, batch.stop
        self.mask, self.width = batch.mask, batch.width

    def record(self, layer: int, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = len(self.counts)
        return tuple(  # type: ignore[return-value]
            whole[:rows, layer, :, : self.stop] for whole in (self.store.keys, self.store.values)
        )


def cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    with torch.no_grad():
        work()
    return time.process_time() - started


def measure(
    *,
    evictors: Sequence[str] = ("rkv", "snapkv"),
    intervals: Sequence[int] = INTERVALS,
    budgets: Sequence[int] = BUDGETS,
    shape: str = "smollm2",
    rows: int = 16,
    turns: int = 7,
    common: float = 1.5,
) -> list[dict[str, Any]]:
    """One row of plain data per evictor, budget and interval: its `alpha` (median of turns), the
    CPU microseconds per row and token of `attention` and of `eviction` (medians), and `turns`, for
    each turn the CPU seconds per token of all rows, [attention, eviction]."""
    found: list[dict[str, Any]] = []
    for budget in budgets:
        caches = {
            (kind, interval): Cache(
                KINDS[kind](budget=budget, window=WINDOW, interval=interval), shape, rows, common, 0
            )
            for kind in evictors
            for interval in intervals
        }
        seen: dict[tuple[str, int], list[tuple[float, float]]] = {side: [] for side in caches}
        for _ in range(turns):
            for side, cache in caches.items():
                # As in a decode step, both read a cache that others have pushed out of the CPU's.
                attention, fired = [], []
                for _ in range(max(1, 4 // cache.interval)):
                    attention.append(cache.attend())
                    cache.append(cache.interval)
                    fired.append(cache.fire() / cache.interval)
                seen[side].append((statistics.fmean(attention), statistics.fmean(fired)))
        for (kind, interval), values in seen.items():
            attention, eviction = (statistics.median(v[i] for v in values) for i in (0, 1))
            found.append(
                {
                    "evictor": kind,
                    "budget": budget,
                    "interval": interval,
                    "alpha": statistics.median(e / a for a, e in values),
                    "attention_us": 1e6 * attention / rows,
                    "eviction_us": 1e6 * eviction / rows,
                    "turns": [list(v) for v in values],
                }
            )
            print(found[-1], file=sys.stderr)
    return found


def ratios(size: Size) -> list[Ratio]:
    budgets, intervals = (
        size.pick((64, 512), (64,), (64,)),
        size.pick(INTERVALS, INTERVALS, (1, 16)),
    )
    rows, turns = size.pick(8, 8, 1), size.pick(3, 2, 1)
    found = measure(
        evictors=["rkv"], budgets=budgets, intervals=intervals, rows=rows, turns=turns
    ) + measure(evictors=["snapkv"], budgets=budgets, intervals=(1,), rows=rows, turns=turns)
    names = {"rkv": "R-KV", "snapkv": "SnapKV"}
    return [
        Ratio(
            name=f"{names[f['evictor']]} {f['budget']} + {WINDOW}, {_every(f['interval'])}: "
            "eviction over attention",
            above=Side("eviction", tuple(eviction for _, eviction in f["turns"])),
            below=Side("attention", tuple(attention for attention, _ in f["turns"])),
            unit=f"seconds per token of {rows} rows, 30 layers of SmolLM2's heads",
            clock="cpu",
            goal=Goal("at most", 1) if (f["evictor"], f["interval"]) == ("rkv", 1) else None,
            elsewhere="the paper's alpha: 2.9" if f["evictor"] == "rkv" else "",
            means="alpha of Eq. 13: what an evictor takes for a token, in passes of attention over "
            "the entries that are cached.",
            means_not="a share of a decode step, most of which are matrix products; see eviction "
            "and decode_profile.",
        )
        for f in found
    ]


def _every(interval: int) -> str:
    return "every token" if interval == 1 else f"every {interval} tokens"


def main() -> None:
    parser = parser_of("alpha", __doc__)
    parser.add_argument("--evictors", nargs="+", choices=list(KINDS), default=["rkv", "snapkv"])
    parser.add_argument("--intervals", nargs="+", type=at_least(1), default=list(INTERVALS))
    parser.add_argument("--budgets", nargs="+", type=at_least(1), default=list(BUDGETS))
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm2")
    parser.add_argument("--rows", type=at_least(1), default=16)
    parser.add_argument("--turns", type=at_least(1), default=7)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(
        evictors=args.evictors,
        intervals=args.intervals,
        budgets=args.budgets,
        shape=args.shape,
        rows=args.rows,
        turns=args.turns,
        common=0.0 if args.apart else 1.5,
    )
    if args.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{args.shape}, {args.rows} rows, window {WINDOW}, {torch.get_num_threads()} thread(s)")
    for kind in args.evictors:
        print(f"{kind}: alpha by interval".ljust(32) + "".join(f"{i:8d}" for i in args.intervals))
        for budget in args.budgets:
            row = {f["interval"]: f for f in found if (f["evictor"], f["budget"]) == (kind, budget)}
            cells = "".join(f"{row[i]['alpha']:8.2f}" for i in args.intervals)
            print(f"  budget {budget:4d}".ljust(32) + cells)


if __name__ == "__main__":
    sys.exit(told(main))

"""Time of one `select` per evictor, for the shapes of a decoding engine.

    python benchmarks/evictor_cost.py [--threads N] [--repeats N] [--evictors rkv,snapkv]

Keys have a common mean, as real keys do (most pairs exceed the similarity threshold); the
line `rkv-iso` is R-KV's worst case, zero-mean keys without any match.
"""

from __future__ import annotations

import argparse
import time

import torch

from kvrescue.evictors import H2O, RKV, Evictor, KVSlice, RandomEviction, SnapKV, StreamingLLM

SHAPES = {
    # name: (rows, kv_heads, q_heads, head_dim, budget, window)
    "SmolLM2, 64 sequences, n=81": (30 * 64, 3, 9, 64, 64, 16),
    "SmolLM2, 64 sequences, n=193": (30 * 64, 3, 9, 64, 64, 128),
    "tiny, 800 sequences, n=29": (3 * 800, 2, 4, 32, 20, 8),
}
OBSERVATION = 8


def slice_for(shape: tuple[int, ...], common: float, extra: int = 1) -> KVSlice:
    """One entry more than the bound, the steady state of decoding."""
    rows, kv_heads, q_heads, dim, budget, window = shape
    length = budget + window + extra
    made = torch.Generator().manual_seed(0)
    keys = torch.randn(rows, kv_heads, length, dim, generator=made)
    keys += common * torch.randn(rows, kv_heads, 1, dim, generator=made)
    return KVSlice(
        keys=keys,
        queries=torch.randn(rows, q_heads, OBSERVATION, dim, generator=made),
        positions=torch.arange(length).expand(rows, kv_heads, length),
        attention=torch.rand(rows, kv_heads, length, generator=made),
    )


def milliseconds(evictor: Evictor, kv: KVSlice, repeats: int) -> tuple[float, float]:
    """Best wall time and best CPU time of all threads (the steadier one on a busy machine)."""
    evictor.select(kv)
    wall, cpu = [], []
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        evictor.select(kv)
        wall.append((time.perf_counter() - start[0]) * 1e3)
        cpu.append((time.process_time() - start[1]) * 1e3)
    return min(wall), min(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--evictors", default="rkv,rkv-iso,snapkv,h2o,streaming_llm,random")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, float32, milliseconds per select: wall (CPU)")
    for name, shape in SHAPES.items():
        common = {"budget": shape[4], "window": shape[5], "observation": OBSERVATION}
        evictors: dict[str, Evictor] = {
            "rkv": RKV(**common),
            "rkv-iso": RKV(**common),
            "snapkv": SnapKV(**common),
            "h2o": H2O(**common),
            "streaming_llm": StreamingLLM(**common),
            "random": RandomEviction(**common),
        }
        print(name)
        for label in options.evictors.split(","):
            kv = slice_for(shape, 0.0 if label == "rkv-iso" else 1.5)
            wall, cpu = milliseconds(evictors[label], kv, options.repeats)
            print(f"  {label:14s} {wall:8.1f} ({cpu:.1f})")


if __name__ == "__main__":
    main()

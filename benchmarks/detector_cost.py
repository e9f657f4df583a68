"""Cost of the detectors in microseconds per token, and as a share of a decode step.

    python benchmarks/detector_cost.py

The budget: detectors may take 2 % of a decode step of 200 ms with 64 live candidates, that is
62 us per candidate and token.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from kvrescue.detectors import (
    Detector,
    DetectorBank,
    EntropyDetector,
    GzipDetector,
    NgramDetector,
    TokenEvent,
)

STEP_SECONDS = 0.200
CANDIDATES = 64
BUDGET_US = 0.02 * STEP_SECONDS / CANDIDATES * 1e6
REPEATS = 7


def _events(pieces: Sequence[str]) -> list[TokenEvent]:
    ids: dict[str, int] = {}
    return [TokenEvent(ids.setdefault(piece, len(ids)), piece, 0.7) for piece in pieces]


def _vocabulary(generator: random.Random, size: int, lengths: Sequence[int]) -> list[str]:
    letters = "etaoinshrdlucmfwygpbvk"
    return [
        " " + "".join(generator.choices(letters, k=generator.choice(lengths) - 1))
        for _ in range(size)
    ]


def streams() -> dict[str, list[TokenEvent]]:
    """None of them makes a default detector fire, so every token is paid for."""
    generator = random.Random(0)
    words = _vocabulary(generator, 300, (2, 3, 3, 4, 5))
    long_words = _vocabulary(generator, 300, (9,))
    chinese = [chr(0x4E00 + n) + chr(0x5A00 + n) for n in range(300)]
    return {
        "mean step, 25 tokens": _events(generator.choices(words, k=25)),
        "longest step, 512 tokens": _events(generator.choices(words, k=512)),
        "512 long tokens": _events(generator.choices(long_words, k=512)),
        "512 tokens of Chinese": _events(generator.choices(chinese, k=512)),
        "512 tokens, two kinds": _events(generator.choices([" alpha", " beta"], k=512)),
    }


def microseconds(detectors: Sequence[Detector], events: Sequence[TokenEvent]) -> float:
    """Best of several repeats; until the verdict, if there is one."""
    best = float("inf")
    for _ in range(REPEATS):
        read = 0
        begin = time.perf_counter()
        bank = DetectorBank(detectors)
        for event in events:
            read += 1
            if bank.update(event) is not None:
                break
        best = min(best, (time.perf_counter() - begin) / read)
    return best * 1e6


def main() -> None:
    sets: dict[str, list[Detector]] = {
        "none": [],
        "entropy": [EntropyDetector()],
        "gzip": [GzipDetector(threshold=0.05)],  # the two-word stream would fire at 0.18
        "ngram": [NgramDetector()],
    }
    sets["all"] = [*sets["entropy"], *sets["gzip"], *sets["ngram"]]
    print(f"us per token; budget {BUDGET_US:.1f}")
    print(f"{'':26}" + "".join(f"{name:>9}" for name in sets) + f"{'of step':>9}")
    for name, events in streams().items():
        costs = [microseconds(detectors, events) for detectors in sets.values()]
        share = costs[-1] * CANDIDATES / 1e6 / STEP_SECONDS
        print(f"{name:26}" + "".join(f"{cost:9.2f}" for cost in costs) + f"{share:9.2%}")


if __name__ == "__main__":
    main()

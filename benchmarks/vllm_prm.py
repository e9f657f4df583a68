"""What vLLM's prefix cache saves the reward model: one round of candidates, with and without.

OMP_NUM_THREADS=1 python -m benchmarks.vllm_prm
"""

from __future__ import annotations

import asyncio
import itertools
import time

from kvrescue.scorers import VLLMPRM
from kvrescue.types import Candidate, CommittedStep, Context, Question, StopReason

QUESTION = "Tom has 3 apples. He buys 4 more. How many apples does he have? " * 4
CANDIDATES, STEPS, ROUNDS = 16, 10, 4


def candidate(number: int) -> Candidate:
    text = f"Tom has {number} + {number} = {2 * number} apples.\n\n"
    return Candidate("base", number, text, (), StopReason.SEPARATOR, "")


async def rounds(prm: VLLMPRM) -> tuple[int, list[float], list[list[float]]]:
    """Tokens of one text, seconds per round, and the scores: each round commits a step."""
    steps = [CommittedStep(i, candidate(i % 3), 0.5) for i in range(STEPS)]
    shown = [candidate(i) for i in range(CANDIDATES)]
    length, seconds, scores = 0, [], []
    for _ in range(ROUNDS):
        context = Context(Question(QUESTION), tuple(steps), 0)
        length = length or len(prm.text.texts(context, shown, prm.max_context)[0].ids)
        start = time.perf_counter()
        scores.append(await prm.score(context, shown))
        seconds.append(time.perf_counter() - start)
        steps.append(CommittedStep(len(steps), shown[0], 0.5))
    return length, seconds, scores


def main() -> None:
    found = []
    for caching in (True, False):
        prm = VLLMPRM("tiny/prm", prefix_caching=caching, kv_cache_bytes=64 << 20)
        length, seconds, scores = asyncio.run(rounds(prm))
        asyncio.run(prm.aclose())
        found.append(scores)
        shown = " ".join(f"{s:.2f}" for s in seconds)
        print(f"prefix_caching={caching}: {CANDIDATES} candidates from {length} tokens: {shown} s")
    pairs = zip(*(itertools.chain(*scores) for scores in found), strict=True)
    print(f"largest difference of scores: {max(abs(a - b) for a, b in pairs):.1e}")


if __name__ == "__main__":
    main()

"""What vLLM's prefix cache saves the reward model: rounds of candidates, with and without."""

from __future__ import annotations

import asyncio
from functools import partial

from benchmarks.ratios import Ratio, Side, Size, in_turns, seconds
from benchmarks.rescoring import Rounds
from kvrescue.scorers import VLLMPRM

__all__ = ["ratios"]


def ratios(size: Size) -> list[Ratio]:
    candidates = size.pick(16, 16, 4)
    scorers = {
        "cached": VLLMPRM("tiny/prm", prefix_caching=True, kv_cache_bytes=64 << 20),
        "read again": VLLMPRM("tiny/prm", prefix_caching=False, kv_cache_bytes=64 << 20),
    }
    rounds = Rounds(candidates)
    scores: dict[str, list[float]] = {}

    def score(name: str) -> None:
        scores[name] = asyncio.run(scorers[name].score(rounds.context(), rounds.shown))

    def timed(name: str) -> float:
        if name == "cached":  # a step is committed between rounds
            rounds.commit()
        return seconds(partial(score, name))

    found = in_turns({name: partial(timed, name) for name in scorers}, size.pick(5, 3, 1))
    for name in scorers:
        score(name)
    different = max(abs(a - b) for a, b in zip(*scores.values(), strict=True))
    if different > 1e-2:
        raise RuntimeError(f"the sides score differently, by up to {different:.1e}")
    for scorer in scorers.values():
        asyncio.run(scorer.aclose())
    return [
        Ratio(
            name="prefix read again over prefix cached, vLLM",
            above=Side("without prefix caching", found["read again"]),
            below=Side("with prefix caching", found["cached"]),
            unit=f"seconds per round of {candidates} candidates",
            clock="cpu",
            means="vLLM finds question and committed steps in its cache, block by block.",
            means_not="a difference between kvrescue and vLLM: both sides are vLLM's pooling.",
        )
    ]

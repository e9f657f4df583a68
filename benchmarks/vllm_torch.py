"""Committed steps per second of the vLLM backend against the torch engine: one composition, both.

The tiny base and helper with the tiny reward model, with a budget that no trajectory reaches; and
SmolLM2-135M alone, evicted, with a scorer that costs nothing and with short steps and texts. All
the rest is the same, and every evictor fires every 16 tokens. Both use the processor and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.ratios import Ratio, Side, Size, in_turns, rate
from benchmarks.vllm_speed import CONTEXT, SETTINGS, Setting, ours, run_ours
from kvrescue import Limits, Proposer, Rescue
from kvrescue.evaluation.bill import bills
from kvrescue.evictors import RKV, Evictor
from kvrescue.policies import TorchPolicy
from kvrescue.scorers.base import Scorer

__all__ = ["ratios"]

INTERVAL = 16


def ratios(size: Size) -> list[Ratio]:
    wide = "budget >= length"
    found = _compared("tiny", SETTINGS["tiny"], size.pick(4, 4, 2), size.pick(2, 1, 1), only=wide)
    if size is not Size.SMOKE:
        setting = SETTINGS["smollm2"]
        sampling = setting.sampling.model_copy(update={"max_step_tokens": 16})
        setting = replace(setting, sampling=sampling, limit=32, evictor=RKV(budget=32, window=32))
        found += _compared("SmolLM2", setting, 1, size.pick(2, 1, 1), only="evicted")
    return found


def _compared(
    name: str, setting: Setting, problems: int, turns: int, only: str | None = None
) -> list[Ratio]:
    questions = [b.question for b in bills("test", seed=5, count=problems)]
    scorer, _ = setting.scorer()
    evictors: dict[str, RKV] = {
        "budget >= length": RKV(budget=CONTEXT - 28, window=12, interval=INTERVAL),
        "evicted": RKV(**{**dict(setting.evictor), "interval": INTERVAL}),
    }
    evictors = {how: evictor for how, evictor in evictors.items() if only in (None, how)}
    rescues: dict[str, Rescue] = {}
    for how, evictor in evictors.items():
        rescues[f"vLLM, {how}"] = ours(setting, evictor, scorer, problems)
        rescues[f"torch, {how}"] = _on_torch(setting, evictor, scorer, problems)
    sides: dict[str, Callable[[], float]] = {
        side: partial(rate, partial(run_ours, rescue, questions))
        for side, rescue in rescues.items()
    }
    if len(questions) > 1:  # what is done once weighs less where a turn is one long problem
        for rescue in rescues.values():
            run_ours(rescue, questions[:1])
    measured = in_turns(sides, turns, warm_up=())
    for rescue in rescues.values():
        rescue.close()
    return [
        Ratio(
            name=f"{name}: vLLM over torch, {how}",
            above=Side("vLLM backend", measured[f"vLLM, {how}"]),
            below=Side("torch engine", measured[f"torch, {how}"]),
            unit=f"committed steps per second, best-of-{setting.n} of {problems} problem(s)",
            clock="cpu",
            means="Which of the two engines solves sooner on one core: above 1, it is vLLM's.",
            means_not="what it is on a GPU, for which vLLM is made; here its kernels for "
            "processors run.",
        )
        for how in evictors
    ]


def _on_torch(setting: Setting, evictor: Evictor, scorer: Scorer, problems: int) -> Rescue:
    return Rescue(
        [
            Proposer(
                TorchPolicy(model, evictor=None if i else evictor, max_context=CONTEXT),
                n=setting.n,
                name="helper" if i else "base",
            )
            for i, model in enumerate(setting.models)
        ],
        scorer,
        sampling=setting.sampling,
        limits=Limits(max_output_tokens=setting.limit),
        concurrency=problems,
    )

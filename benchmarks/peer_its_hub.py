"""Committed steps per second of the vLLM backend against its-hub, which comes from PyPI.

its-hub's beam search with a beam of one is stepwise best-of-N: N continuations of one text, the
best of which is the next text. Its language model is stock vLLM with prefix caching in this
process, without the server that it usually talks to; its reward model reads whole texts in one
batch. Both sides draw N candidates of the tiny base with full context, and have the tiny reward
model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from its_hub.api import AbstractLanguageModel, AbstractProcessRewardModel, ChatMessage
from its_hub.core.algorithms.beam_search import BeamSearch
from its_hub.core.lms.step_generation import StepGeneration

from benchmarks.ratios import Goal, Ratio, Side, Size, in_turns, rate
from benchmarks.vllm_peers import Score, StockVLLM
from benchmarks.vllm_speed import CONTEXT, SETTINGS, Setting, ours, run_ours
from kvrescue import Sampling
from kvrescue.evaluation.bill import bills
from kvrescue.evictors import RKV

__all__ = ["ratios"]

MOST_STEPS = 40


class Model(AbstractLanguageModel):
    """Stock vLLM as its-hub sees a language model: messages in, a message out."""

    def __init__(self, engine: StockVLLM, sampling: Sampling) -> None:
        self.engine, self.sampling = engine, sampling

    async def agenerate(self, messages: Any, stop: Any = None, **options: Any) -> Any:
        if isinstance(messages[0], ChatMessage):
            return await self.agenerate_single(messages, stop, **options)
        return await asyncio.gather(*(self.agenerate_single(m, stop, **options) for m in messages))

    async def agenerate_single(
        self, messages: list[ChatMessage], stop: Any = None, **options: Any
    ) -> dict[str, Any]:
        text = self.engine.prompt(str(messages[0].content))
        text += "".join(str(m.content) for m in messages[1:])
        drawn = self.sampling.model_copy(
            update={"temperature": options["temperature"], "separator": stop}
        )
        (found,) = await self.engine.complete(text, 1, drawn)
        end = self.engine.tokenizer.eos_token if found.is_last else ""
        return {"role": "assistant", "content": found.text + end}


class Reward(AbstractProcessRewardModel):
    """The reward model of both sides, as its-hub sees one: whole responses in, scores out."""

    def __init__(self, read: Score, separator: str) -> None:
        self.read, self.separator = read, separator

    def score(self, prompt_or_messages: Any, steps: list[str]) -> list[float]:
        cut = [self._steps(text) for text in steps]
        contexts = [(str(prompt_or_messages), done[:-1]) for done in cut]
        return [value for (value,) in self.read(contexts, [[done[-1]] for done in cut])]

    def _steps(self, text: str) -> list[str]:
        parts = text.split(self.separator)
        whole = [part + self.separator for part in parts[:-1]]
        return [*whole, parts[-1]] if parts[-1] or not whole else whole

    async def ascore(self, prompt_or_messages: Any, steps: list[str]) -> list[float]:
        return self.score(prompt_or_messages, steps)


def ratios(size: Size) -> list[Ratio]:
    problems, turns = size.pick(4, 4, 2), size.pick(2, 1, 1)
    whole: Setting = SETTINGS["tiny"]
    setting = replace(whole, models=whole.models[:1], n=size.pick(4, 4, 2))
    scorer, score = setting.scorer()
    wide = RKV(budget=CONTEXT - 28, window=12)
    rescue = ours(setting, wide, scorer, problems)
    live = problems * setting.n
    engine = StockVLLM(setting.models[0], context=CONTEXT, live=live, memory=setting.memory)
    search = BeamSearch(
        StepGeneration(
            MOST_STEPS,
            setting.sampling.separator,
            stop_token=engine.tokenizer.eos_token,
            temperature=setting.sampling.temperature,
            include_stop_str_in_output=True,
        ),
        Reward(score, setting.sampling.separator),
        beam_width=1,
    )
    model = Model(engine, setting.sampling)

    async def searched(questions: Sequence[str]) -> float:
        found = await asyncio.gather(
            *(
                search.ainfer(model, question, budget=setting.n, return_response_only=False)
                for question in questions
            )
        )
        return float(sum(result.steps_used[result.selected_index] for result in found))

    questions = [b.question for b in bills("test", seed=5, count=problems)]
    sides = {
        "kvrescue": lambda q: run_ours(rescue, q),
        "its-hub": lambda q: asyncio.run(searched(q)),
    }
    for side in sides.values():
        side(questions[:1])
    found = in_turns(
        {name: partial(rate, partial(side, questions)) for name, side in sides.items()},
        turns,
        warm_up=(),
    )
    rescue.close()
    return [
        Ratio(
            name="kvrescue, budget >= length, over its-hub's beam search of width 1",
            above=Side("kvrescue on vLLM", found["kvrescue"]),
            below=Side("its-hub on stock vLLM, prefix caching", found["its-hub"]),
            unit=f"committed steps per second, best-of-{setting.n} of {problems} problems",
            clock="cpu",
            goal=Goal("at least", 1.5),
            means="its-hub's own code against kvrescue: one model, the same candidates, sampling "
            "and reward model, in one process.",
            means_not="its-hub as it is deployed: a server, HTTP and a reward model on a GPU come "
            "to it, and it can search in ways that are not compared here.",
        )
    ]

"""Stepwise search on stock vLLM, the way it is done without kvrescue: whole texts, every step.

The prompt and what was committed go to `generate` as text again (vLLM's prefix caching finds most
of it), the step ends at a stop string, the scorer reads whole texts.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.vllm_overheads import share
from kvrescue import Sampling
from kvrescue.engine.checkpoint import resolve
from kvrescue.policies.vllm.support import require_vllm

__all__ = ["Drawn", "Run", "StockVLLM", "coroutines", "lock_step"]

OVERRIDES: dict[str, dict[str, Any]] = {
    "tiny/helper": {"hf_overrides": {"architectures": ["LlamaForCausalLM"], "qkv_bias": True}}
}
"""vLLM's Qwen2 ignores `head_dim`; its Llama, given biases, computes the same."""

Score = Callable[[Sequence[tuple[str, Sequence[str]]], Sequence[Sequence[str]]], list[list[float]]]
"""Contexts (question, committed steps) and their candidates -> scores."""


@dataclass(frozen=True)
class Drawn:
    """A candidate step of a peer."""

    text: str
    tokens: int
    is_last: bool
    """It ends with EOS."""


@dataclass
class Run:
    """One trajectory of a peer."""

    question: str
    prompt: str
    steps: list[str] = field(default_factory=list)
    committed: int = 0
    drawn: int = 0
    done: bool = False

    def commit(self, found: Sequence[Drawn], scores: Sequence[float], limit: int) -> None:
        best = found[list(scores).index(max(scores))]
        self.steps.append(best.text)
        self.committed += best.tokens
        self.drawn += sum(c.tokens for c in found)
        self.done = best.is_last or self.committed >= limit or not best.text.strip()


class StockVLLM:
    """An engine of stock vLLM with its default prefix caching, stepped by whoever waits."""

    def __init__(self, model: str, *, context: int, live: int, memory: int) -> None:
        require_vllm()  # the same model runner, in this process
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        from kvrescue.policies.vllm.export import model_folder
        from kvrescue.policies.vllm.start import default_type

        args = EngineArgs(
            model=model_folder(resolve(model)),
            dtype=default_type("auto"),
            max_model_len=context,
            max_num_seqs=live,
            max_num_batched_tokens=max(2048, context, live),
            kv_cache_memory_bytes=memory,
            block_size=32 if current_platform.is_cpu() else 16,
            enable_prefix_caching=True,
            async_scheduling=False,
            enforce_eager=True,
            disable_log_stats=True,
            **share(),
            **OVERRIDES.get(model, {}),
        )
        self.engine: Any = LLMEngine.from_engine_args(args)
        self.tokenizer: Any = self.engine.get_tokenizer()
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._task: asyncio.Task[None] | None = None

    def prompt(self, question: str) -> str:
        text: str = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        return text

    async def draw(self, run: Run, n: int, sampling: Sampling) -> list[Drawn]:
        """Candidates for the next step."""
        return await self.complete(run.prompt + "".join(run.steps), n, sampling)

    async def complete(self, text: str, n: int, sampling: Sampling) -> list[Drawn]:
        """Continuations of a text."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            n=n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_step_tokens,
            stop=[sampling.separator],
            include_stop_str_in_output=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        name = str(next(self._numbers))
        waits = self._waiting[name] = asyncio.get_running_loop().create_future()
        self.engine.add_request(name, TokensPrompt(prompt_token_ids=ids), params)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drive())
        output = await waits
        return [
            Drawn(
                c.text,
                len(c.token_ids),
                is_last=c.finish_reason == "stop" and c.stop_reason != sampling.separator,
            )
            for c in output.outputs
        ]

    async def _drive(self) -> None:
        await asyncio.sleep(0)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    self._waiting.pop(output.request_id).set_result(output)
            await asyncio.sleep(0)


Drawers = Sequence[tuple[StockVLLM, int]]
"""Engines, and how many candidates each of them draws."""


async def _candidates(drawers: Drawers, run: Run, sampling: Sampling) -> list[Drawn]:
    found = await asyncio.gather(*(engine.draw(run, n, sampling) for engine, n in drawers))
    return list(itertools.chain(*found))


def _start(drawers: Drawers, questions: Sequence[str]) -> list[Run]:
    return [Run(q, drawers[0][0].prompt(q)) for q in questions]


async def lock_step(
    drawers: Drawers, score: Score, questions: Sequence[str], sampling: Sampling, limit: int
) -> list[Run]:
    """All problems take a step together, as beam search of search-and-learn does."""
    runs = _start(drawers, questions)
    while active := [r for r in runs if not r.done]:
        found = await asyncio.gather(*(_candidates(drawers, r, sampling) for r in active))
        contexts = [(r.question, r.steps) for r in active]
        scores = score(contexts, [[c.text for c in texts] for texts in found])
        for run, candidates, values in zip(active, found, scores, strict=True):
            run.commit(candidates, values, limit)
    return runs


async def coroutines(
    drawers: Drawers, score: Score, questions: Sequence[str], sampling: Sampling, limit: int
) -> list[Run]:
    """Every problem in a coroutine of its own, which scores its own candidates, as its-hub does."""

    async def solve(run: Run) -> None:
        while not run.done:
            found = await _candidates(drawers, run, sampling)
            (values,) = score([(run.question, run.steps)], [[c.text for c in found]])
            run.commit(found, values, limit)

    runs = _start(drawers, questions)
    await asyncio.gather(*(solve(run) for run in runs))
    return runs

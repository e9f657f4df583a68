"""The vLLM backend on the device. Every group starts its engines in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib.util
import json
import time
from typing import Any

from benchmarks.gpu.checks import NotHereError, Place, check, compare, questions, require
from kvrescue import Rescue, Sampling
from kvrescue.evaluation.bill import bills
from kvrescue.evictors import RKV, SnapKV
from kvrescue.evictors.base import Evictor
from kvrescue.policies import TorchPolicy

NARROW = {"budget": 32, "window": 16, "observation": 8}
MEMORY = 512 << 20
PIECEWISE = {"enforce_eager": False, "compilation_config": {"cudagraph_mode": "PIECEWISE"}}


@functools.cache
def policy(model: str, evictor: Evictor | None, dtype: str, graphs: bool = False) -> Any:
    """An engine that later checks of the group may use, too."""
    if importlib.util.find_spec("vllm") is None:
        raise NotHereError("vLLM is not installed")
    from benchmarks.vllm_overheads import share
    from kvrescue.policies.vllm import VLLMPolicy

    options = {**share(), **(PIECEWISE if graphs else {})}
    return VLLMPolicy(
        model,
        evictor=evictor,
        dtype=dtype,
        max_context=1024,
        kv_cache_bytes=MEMORY,
        options=options,
    )


def runner(ours: Any) -> Any:
    return ours.engine.driver.llm.model_executor.driver_worker.worker.model_runner


def short(place: Place) -> str:
    return "float32" if place.device == "cpu" else "bfloat16"


@check("vllm")
def the_worker_starts(place: Place, seen: dict[str, Any]) -> None:
    """Platform, attention backend, and the layout that the self-test found."""
    ours = policy(place.model, RKV(**NARROW), short(place))
    from vllm.platforms import current_platform

    made = runner(ours)
    seen["platform"] = current_platform.device_name
    seen["worker"] = type(ours.engine.driver.llm.model_executor.driver_worker.worker).__name__
    seen["runner"] = type(made).__name__
    context = made.compilation_config.static_forward_context
    names = made.kv_cache_config.kv_cache_groups[0].layer_names
    seen["attention"] = type(context[names[0]].impl).__name__
    seen["layout"] = made.paged.layout.name
    seen["cache"] = [str(made.paged.caches[0].dtype), list(made.paged.caches[0].shape)]
    require(current_platform.is_cpu() == (place.device == "cpu"), "vLLM is on another device")


@check("vllm")
def equal_to_torch(place: Place, seen: dict[str, Any]) -> None:
    """The same evictors on both engines, in the device's usual type."""
    _equal(place, seen, short(place), 0.1)


@check("vllm")
def blocks_and_aborts(place: Place, seen: dict[str, Any]) -> None:
    """Many sequences at once, half of them cancelled, leave the pool as it was."""
    ours = policy(place.model, RKV(**NARROW), short(place))
    sampling = Sampling(max_step_tokens=place.sized(40, 12))

    async def problem(number: int) -> int:
        view = await ours.open(questions(8)[number % 8], "base")
        for turn in range(3):
            task = asyncio.ensure_future(view.propose(4, sampling, (), [number, turn, 1, 2], 512))
            if (number + turn) % 4 == 0:
                for _ in range(4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                continue
            await view.commit((await task)[turn])
        evictions = view.stats.evictions
        await view.close()
        return int(evictions)

    async def everybody() -> list[int]:
        return list(await asyncio.gather(*(problem(i) for i in range(place.sized(24, 6)))))

    seen["evictions"] = sum(asyncio.run(everybody()))
    seen["left"] = ours.engine.in_use
    require(not any(ours.engine.in_use.values()), "something is still in use")
    require(seen["evictions"] > 0, "nothing was evicted")


@check("vllm")
def the_trio_solves_on_vllm(place: Place, seen: dict[str, Any]) -> None:
    """Base and helper on vLLM, the reward model on torch, all on the device."""
    if importlib.util.find_spec("vllm") is None:
        raise NotHereError("vLLM is not installed")
    from benchmarks.vllm_overheads import share

    overrides = [f"scorer.device={place.device}"]
    for role in ("base", "helper"):
        overrides += [
            f"proposers.{role}.policy.kind=vllm",
            f"proposers.{role}.policy.kv_cache_bytes={MEMORY}",
            f"proposers.{role}.policy.options={json.dumps(share())}",
        ]
    with Rescue.from_config("tiny", overrides) as rescue:
        asked = list(bills("test", seed=5, count=place.sized(16, 2)))
        started = time.perf_counter()
        solutions = list(rescue.solve_many([b.question for b in asked]))
        seconds = time.perf_counter() - started
    right = {b.question: str(b.answer) for b in asked}
    seen["right"] = f"{sum(s.answer == right[s.question.text] for s in solutions)} of {len(asked)}"
    seen["steps_per_second"] = round(sum(len(s.steps) for s in solutions) / seconds, 1)
    seen["evictions"] = sum(s.caches["base"].evictions for s in solutions)
    require(not any(s.degradations for s in solutions), "a solution is degraded")
    require(seen["evictions"] > 0, "the base was never evicted from")


@check("vllm_float32")
def equal_to_torch_in_float32(place: Place, seen: dict[str, Any]) -> None:
    """The same with float32, for which vLLM takes another attention backend on CUDA."""
    if place.device == "cpu":
        raise NotHereError("equal_to_torch is float32 on a CPU")
    _equal(place, seen, "float32", 0.02)


@check("vllm_graphs")
def piecewise_graphs(place: Place, seen: dict[str, Any]) -> None:
    """Compiled, with attention outside the captured graphs: as without graphs."""
    if place.device == "cpu":
        raise NotHereError("a CPU captures no graphs")
    evictor = RKV(**NARROW, interval=16)
    ours = policy(place.model, evictor, "bfloat16", graphs=True)
    seen["mode"] = str(ours.engine.driver.llm.vllm_config.compilation_config.cudagraph_mode)
    theirs = policy(place.model, evictor, "bfloat16")
    found = asyncio.run(compare(ours, theirs, 64, 6))
    seen.update(found)
    require(found["entropy_difference_median"] < 0.05, "graphs change what is computed")


@check("vllm_speed")
def throughput_and_eviction_cost(place: Place, seen: dict[str, Any]) -> None:
    """Decode throughput against stock vLLM, and what eviction adds, side by side."""
    if importlib.util.find_spec("vllm") is None:
        raise NotHereError("vLLM is not installed")
    from benchmarks.vllm_overheads import measure

    args = argparse.Namespace(
        live=[16, 64] if not place.quick else [8],
        tokens=place.sized(132, 20),
        turns=place.sized(3, 1),
        intervals=[1, 16, 64] if not place.quick else [16],
        memory=place.sized(2048, 64),
        clock="wall",
    )
    seen.update(measure(args, place.model))
    for live, rows in seen.items():
        ratio = rows["budget >= length"]["throughput of stock"]
        wanted = 0.0 if place.quick else 0.95
        require(ratio >= wanted, f"{live}: {ratio} of stock's throughput at budget >= length")


def _equal(place: Place, seen: dict[str, Any], dtype: str, tolerance: float) -> None:
    for evictor in (RKV(**NARROW, interval=4), SnapKV(**NARROW, interval=16)):
        ours = policy(place.model, evictor, dtype)
        theirs = TorchPolicy(place.model, evictor=evictor, device=place.device, dtype=dtype)
        tokens = place.sized(64, 24)
        found = asyncio.run(compare(ours, theirs, tokens, place.sized(6, 2)))
        seen[f"{evictor.kind}, interval {evictor.interval}"] = found
        require(
            found["entropy_difference_median"] < tolerance,
            f"{evictor.kind}: entropies differ by {found['entropy_difference_median']}",
        )

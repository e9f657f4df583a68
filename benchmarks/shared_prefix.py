"""Attention of N children over the prefix they share: each over its own copy, or all over one.

A fork copies its parent's row, so N children of a full-context policy hold and read the prefix N
times. The other way: one copy, which the queries of all children read together, and the children's
own entries apart; the two parts are joined by their log-sum-exp. This measures the attention of one
decode step per layer both ways, side by side in one run (turns alternate, CPU time, medians), what
the fork itself copies, and the bytes of keys and values that are held.

Run: OMP_NUM_THREADS=1 python -m benchmarks.shared_prefix [--prefix 512 2048] [--children 8]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

SHAPES = {"tiny": (3, 4, 2, 32), "smollm2": (6, 9, 3, 64)}
"""(layers, q_heads, kv_heads, head_dim): as many layers as leave the caches cold."""


def two_parts(query: Tensor, prefix: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]) -> Tensor:
    """query [n, kv_heads, group, dim]; prefix [kv_heads, p, dim], own [n, kv_heads, o, dim]."""
    n, heads, group, dim = query.shape
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    together = query.transpose(0, 1).reshape(1, heads, n * group, dim)
    first, first_lse = flash(together, prefix[0][None], prefix[1][None])
    first = first.view(heads, n, group, dim).transpose(0, 1)
    first_lse = first_lse.view(heads, n, group).transpose(0, 1)
    second, second_lse = flash(query, *own)
    second_lse = second_lse.view(n, heads, group)
    weight = torch.sigmoid(first_lse - second_lse).unsqueeze(3)
    return torch.lerp(second, first, weight)


def measure(
    *,
    prefixes: Sequence[int] = (512, 2048),
    children: int = 8,
    own: int = 64,
    turns: int = 9,
    shapes: Sequence[str] = tuple(SHAPES),
) -> list[dict[str, Any]]:
    """Per shape and prefix: CPU milliseconds per layer and step of both ways and their `ratio`
    (above 1: in place is faster), what forking copies, bytes held, and how far results differ."""
    found = []
    for name in shapes:
        layers, q_heads, kv_heads, dim = SHAPES[name]
        for prefix in prefixes:
            made = torch.Generator().manual_seed(0)
            parent = torch.randn(2, layers, kv_heads, prefix, dim, generator=made)
            rows = torch.randn(2, children, layers, kv_heads, prefix + own, dim, generator=made)
            query = torch.randn(children, kv_heads, q_heads // kv_heads, dim, generator=made)

            def fork(rows: Tensor = rows, parent: Tensor = parent, prefix: int = prefix) -> None:
                rows[:, :, :, :, :prefix] = parent[:, None]

            def copied(layer: int, rows: Tensor = rows, query: Tensor = query) -> Tensor:
                return scaled_dot_product_attention(query, rows[0, :, layer], rows[1, :, layer])

            def in_place(
                layer: int,
                rows: Tensor = rows,
                parent: Tensor = parent,
                query: Tensor = query,
                prefix: int = prefix,
            ) -> Tensor:
                mine = rows[:, :, layer, :, prefix:]
                return two_parts(query, (parent[0, layer], parent[1, layer]), (mine[0], mine[1]))

            forks = [cpu(fork) for _ in range(3)]
            apart = max(float((copied(i) - in_place(i)).abs().max()) for i in range(layers))
            seconds: dict[str, list[float]] = {"copied": [], "in place": []}
            for _ in range(turns):
                for side, run in (("copied", copied), ("in place", in_place)):
                    took = cpu(lambda run=run, layers=layers: [run(i) for i in range(layers)])
                    seconds[side].append(took / layers)
            ms = {side: 1000 * statistics.median(values) for side, values in seconds.items()}
            size = 4 * 2 * layers * kv_heads * dim
            found.append(
                {
                    "shape": name,
                    "prefix": prefix,
                    "children": children,
                    "own": own,
                    "copied_ms": ms["copied"],
                    "in_place_ms": ms["in place"],
                    "ratio": ms["copied"] / ms["in place"],
                    "fork_ms_per_layer": 1000 * statistics.median(forks) / layers,
                    "copied_bytes": size * children * (prefix + own),
                    "in_place_bytes": size * (prefix + children * own),
                    "largest_difference": apart,
                }
            )
    return found


def cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prefix", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--children", type=int, default=8)
    parser.add_argument("--own", type=int, default=64)
    parser.add_argument("--turns", type=int, default=9)
    args = parser.parse_args()
    found = measure(prefixes=args.prefix, children=args.children, own=args.own, turns=args.turns)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

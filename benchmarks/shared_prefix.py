"""A prefix shared by N children: copied for each, read in two parts, or read once by all.

Two measurements, each side by side in one run: turns alternate, CPU time, medians.

`attention`: of one decode step, per layer. *Copied*: every child has a row with a copy of the
prefix. *Two parts*: the queries of all children read the prefix in place together, and the
children's own entries apart; the parts are joined by their log-sum-exp (a private function of
torch, which the engine does not use). *Side by side*: one row holds the prefix once and the own
entries of all children behind it, and a mask leaves to each child its own; this is what the engine
does (`kvrescue.engine.packs`). Also what the fork copies, and the bytes of keys and values that the
children hold.

`engine`: a whole decode step of the torch engine, `share_prefix` off and on: `tiny` is tiny/base,
`smollm2` is SmolLM2-135M. The mean over the steps of `--tokens` tokens, so that children's own
entries grow as they do; and the bytes that live rows hold when all children have their tokens.

Run: OMP_NUM_THREADS=1 python -m benchmarks.shared_prefix [attention] [engine] [--prefix 512 2048]
     [--children 8] [--tokens 24] [--turns 9] [--shapes tiny smollm2]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.arguments import at_least, parser_of, told
from benchmarks.decoding import MODEL, TEXT, Rows, Stamp, endless
from benchmarks.ratios import in_turns
from kvrescue.engine.packs import WIDTH

SHAPES = {"tiny": (3, 4, 2, 32), "smollm2": (6, 9, 3, 64)}
"""(layers, q_heads, kv_heads, head_dim): as many layers as leave the caches cold."""
MODELS = {"tiny": "tiny/base", "smollm2": MODEL}


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


def sees(children: int, prefix: int, own: int, group: int) -> Tensor:
    """[1, 1, group * children, prefix + children * own]: 0 where a child may look, else -inf."""
    owner = torch.arange(children).repeat(own)
    seen = torch.ones(children, prefix + children * own, dtype=torch.bool)
    seen[:, prefix:] = owner == torch.arange(children)[:, None]
    mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
    return mask.repeat(group, 1)[None, None]


def attention(
    *,
    prefixes: Sequence[int] = (512, 2048),
    children: int = 8,
    own: int = 64,
    turns: int = 9,
    shapes: Sequence[str] = tuple(SHAPES),
) -> list[dict[str, Any]]:
    """Per shape and prefix: CPU milliseconds per layer and step of each way and the `ratio` of
    copied to side by side (above 1: side by side is faster), what forking copies, bytes held, and
    how far results differ."""
    found = []
    for name in shapes:
        layers, q_heads, kv_heads, dim = SHAPES[name]
        for prefix in prefixes:
            made = torch.Generator().manual_seed(0)
            parent = torch.randn(2, layers, kv_heads, prefix, dim, generator=made)
            rows = torch.randn(2, children, layers, kv_heads, prefix + own, dim, generator=made)
            group = q_heads // kv_heads
            query = torch.randn(children, kv_heads, group, dim, generator=made)
            pack = torch.cat((parent, rows[:, :, :, :, prefix:].permute(
                0, 2, 3, 4, 1, 5).reshape(2, layers, kv_heads, -1, dim)), dim=3)  # fmt: skip
            mask = sees(children, prefix, own, group)
            together = query.permute(1, 2, 0, 3).reshape(1, kv_heads, group * children, dim)

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

            def side_by_side(
                layer: int, pack: Tensor = pack, together: Tensor = together, mask: Tensor = mask
            ) -> Tensor:
                keys, values = pack[:, None, layer]
                return scaled_dot_product_attention(together, keys, values, attn_mask=mask)

            forks = [cpu(fork) for _ in range(3)]
            apart = max(
                float((copied(i) - out).abs().max())
                for i in range(layers)
                for out in (
                    in_place(i),
                    side_by_side(i).view(kv_heads, group, children, dim).permute(2, 0, 1, 3),
                )
            )
            sides = (("copied", copied), ("two parts", in_place), ("side by side", side_by_side))
            seconds: dict[str, list[float]] = {side: [] for side, _ in sides}
            for _ in range(turns):
                for side, run in sides:
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
                    "two_parts_ms": ms["two parts"],
                    "side_by_side_ms": ms["side by side"],
                    "ratio": ms["copied"] / ms["side by side"],
                    "fork_ms_per_layer": 1000 * statistics.median(forks) / layers,
                    "copied_bytes": size * children * (prefix + own),
                    "shared_bytes": size * (prefix + children * own),
                    "largest_difference": apart,
                }
            )
    return found


def watched(rows: Rows, tokens: int) -> int:
    """Slots of live rows that are filled at the last token of a decoding."""
    live, seen = rows.engine.live, [0]
    rows.decode(
        tokens,
        Stamp(call=lambda: seen.append(int(live.store.length[: live.forks.rows].sum()))),
    )
    return seen[-1]


def engine(
    *,
    prefixes: Sequence[int] = (512, 2048),
    children: int = 8,
    tokens: int = 24,
    turns: int = 5,
    shapes: Sequence[str] = tuple(MODELS),
) -> list[dict[str, Any]]:
    """Per shape and prefix: CPU milliseconds of a decode step of all children, prefixes copied and
    shared, the `ratio` within a turn (median, least and largest; above 1: shared is faster), and
    the bytes of keys and values in the filled slots of live rows after the last step."""
    found = []
    for shape in shapes:
        side = {share: endless(MODELS[shape], share_prefix=share) for share in (False, True)}
        for prefix in prefixes:
            text = [int(t) for t in side[True].tokenizer.encode(TEXT * (prefix // 8 + 8))]
            rows = {share: Rows(side[share], children) for share in (False, True)}
            held: dict[bool, int] = {}
            for share, of in rows.items():
                of.open([text[:prefix]])
                filled = watched(of, tokens)
                store = of.engine.live.store
                held[share] = filled * store.nbytes // (store.rows * store.capacity)
            seen = in_turns(
                {str(share): lambda of=of: of.step(tokens) for share, of in rows.items()}, turns, ()
            )
            ratios = [a / b for a, b in zip(seen["False"], seen["True"], strict=True)]
            found.append(
                {
                    "shape": shape,
                    "prefix": prefix,
                    "children": children,
                    "tokens": tokens,
                    "copied_ms": 1000 * statistics.median(seen["False"]),
                    "shared_ms": 1000 * statistics.median(seen["True"]),
                    "ratio": statistics.median(ratios),
                    "spread": [min(ratios), max(ratios)],
                    "copied_bytes": held[False],
                    "shared_bytes": held[True],
                }
            )
            for of in rows.values():
                of.close()
    return found


def cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parts = {"attention": attention, "engine": engine}
    parser = parser_of("shared_prefix", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" or ".join(parts))
    parser.add_argument("--prefix", nargs="+", type=at_least(1), default=[512, 2048])
    parser.add_argument("--children", type=at_least(1), default=8)
    parser.add_argument(
        "--own", type=at_least(1), default=64, help="of attention: entries of each child"
    )
    parser.add_argument("--tokens", type=at_least(1), default=24, help="of engine: steps per turn")
    parser.add_argument("--turns", type=at_least(1), default=9)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    args = parser.parse_args()
    if unknown := set(args.parts) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; use {' or '.join(parts)}")
    same: dict[str, Any] = {
        "prefixes": args.prefix,
        "children": args.children,
        "turns": args.turns,
        "shapes": args.shapes,
    }
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "width": WIDTH}
    if not args.parts or "attention" in args.parts:
        found["attention"] = attention(own=args.own, **same)
    if not args.parts or "engine" in args.parts:
        found["engine"] = engine(tokens=args.tokens, **same)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    sys.exit(told(main))

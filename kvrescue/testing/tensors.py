"""Slices for evictors, and comparing scores. Imports torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from kvrescue.evictors.base import KVSlice
from kvrescue.testing.evictors import KVCase

__all__ = [
    "NEAR",
    "difference",
    "floats",
    "layouts",
    "make_slice",
    "near",
    "numbers",
    "same",
    "single_row",
    "spans",
]

NEAR = 1e-4
"""Of the largest score: batched matrix products round differently, and near ties may flip."""


def make_slice(case: KVCase) -> KVSlice:
    """See `KVCase.slice`."""
    rows, heads, dim = len(case.rows), case.kv_heads, case.head_dim
    length = max(entries for entries, _, _ in case.rows)
    observed = max(queries for _, _, queries in case.rows)
    made = torch.Generator().manual_seed(case.seed)
    dtype = getattr(torch, case.dtype)

    def draw(*shape: int) -> Tensor:
        return torch.randn(rows, *shape, generator=made)

    keys = draw(heads, length, dim) + draw(heads, 1, dim)
    values = draw(heads, length, dim)
    queries = draw(heads * case.group, observed, dim)
    attention = torch.rand(rows, heads, length, generator=made)
    positions = torch.randint(1, 4, (rows, heads, length), generator=made).cumsum(-1) - 1
    if case.content == "equal":
        keys, values = (x[:, :, :1].expand_as(x).clone() for x in (keys, values))
        attention = torch.ones_like(attention)
    elif case.content == "zero":
        keys, values, queries = (torch.zeros_like(x) for x in (keys, values, queries))
        attention = torch.zeros_like(attention)
    elif case.content == "repeated":
        which = torch.arange(length) % 3
        which = torch.minimum(which, torch.tensor(length - 1))
        keys, values, attention = (x[:, :, which].clone() for x in (keys, values, attention))
    elif case.content == "large":
        keys, values, queries = (x * 64 for x in (keys, values, queries))
    lengths, prompts, counts = (list(column) for column in zip(*case.rows, strict=True))
    for row in range(rows):
        for part in (keys, values, attention):
            part[row, :, lengths[row] :] = float("nan")
        queries[row, :, : observed - counts[row]] = float("nan")
    return KVSlice(
        keys=keys.to(dtype),
        queries=queries.to(dtype),
        values=values.to(dtype),
        positions=positions,
        attention=attention,
        lengths=torch.tensor(lengths) if len(set(lengths)) > 1 else None,
        query_counts=torch.tensor(counts) if len(set(counts)) > 1 else None,
        prefix=torch.tensor(prompts) if any(prompts) else None,
    )


def single_row(kv: KVSlice, case: KVCase, row: int) -> KVSlice:
    """Row `row` alone, without padding; copies."""
    length, prompt, count = case.rows[row]

    def cut(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[row : row + 1, :, :length].clone()

    return KVSlice(
        keys=kv.keys[row : row + 1, :, :length].clone(),
        queries=kv.queries[row : row + 1, :, kv.queries.shape[2] - count :].clone(),
        values=cut(kv.values),
        positions=cut(kv.positions),
        attention=cut(kv.attention),
        prefix=torch.tensor([prompt]) if prompt else None,
    )


def near(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of scores agree up to the rounding of float32 arithmetic."""
    if one.shape != other.shape:
        return False
    scale = float(torch.maximum(one.abs().max(), other.abs().max())) if one.numel() else 0.0
    return float((one - other).abs().max() if one.numel() else 0.0) <= NEAR * scale


def same(one: Tensor, other: Tensor) -> bool:
    """Equal, NaN where NaN is."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def floats(kv: KVSlice) -> KVSlice:
    return dataclasses.replace(
        kv,
        keys=kv.keys.float(),
        queries=kv.queries.float(),
        values=None if kv.values is None else kv.values.float(),
    )


def layouts(kv: KVSlice) -> list[tuple[str, KVSlice]]:
    """The same numbers in other memory; what surrounds them is NaN."""

    def inside(value: Tensor) -> Tensor:
        rows, heads, length, dim = value.shape
        store = torch.full((rows + 1, heads, length + 3, dim), float("nan"), dtype=value.dtype)
        store[:rows, :, :length] = value
        return store[:rows, :, :length]

    def turned(value: Tensor) -> Tensor:
        return value.transpose(1, 2).contiguous().transpose(1, 2)

    def through(move: Callable[[Tensor], Tensor]) -> KVSlice:
        return dataclasses.replace(
            kv,
            keys=move(kv.keys),
            queries=move(kv.queries),
            values=None if kv.values is None else move(kv.values),
        )

    return [("inside a larger store", through(inside)), ("transposed", through(turned))]


def difference(one: Tensor, other: Tensor, where: slice, names: tuple[str, str]) -> str:
    """The entry at which two tensors of scores [1, heads, length] differ most."""
    gap = (one - other)[0, :, where].abs()
    head, entry = divmod(int(gap.nan_to_num(float("inf")).argmax()), gap.shape[1])
    entry += where.start
    first, second = float(one[0, head, entry]), float(other[0, head, entry])
    return (
        f"the score of entry {entry}, KV head {head}, is {first:.6g} {names[0]} and "
        f"{second:.6g} {names[1]}"
    )


def spans(indices: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], index]
        else:
            parts.append([index])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[1]}" for p in parts) or "nothing"


def numbers(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"

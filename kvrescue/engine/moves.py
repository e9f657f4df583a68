"""Entries of a cache change their places: one function each, on torch or by a kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from kvrescue import kernels

__all__ = ["compact", "move", "move_at"]


@torch.no_grad()
def compact(values: Tensor, kept: Tensor) -> None:
    """values[p, j] = values[p, kept[p, j]] for all j, in place.

    Args:
        values: [pairs, slots, ...]; a view of the cache.
        kept: [pairs, count] int64 in any order. Where it ascends, kernels move slots without a
            scratch copy; they do not know other orders, for which torch copies.
    """
    pairs, count = kept.shape
    flat = _flat(values, 2)
    if flat is not None and kernels.available(values.device) and _ascends(kept):
        from kvrescue.kernels.compaction import compact

        compact(flat, kept)
        return
    index = kept.view(pairs, count, *(1 for _ in values.shape[2:])).expand(
        -1, -1, *values.shape[2:]
    )
    values[:, :count] = values.gather(1, index)


@torch.no_grad()
def move(values: Tensor, source: Tensor, target: Tensor) -> None:
    """values[target[i]] = values[source[i]] for all i, in place.

    Args:
        values: [entries, ...]; a view of the cache.
        source: [count] int64.
        target: [count] int64; none of them occurs twice, or in `source`, but for an entry that
            stays where it is.
    """
    flat = _flat(values, 1)
    if flat is not None and kernels.available(values.device):
        from kvrescue.kernels.compaction import move

        move(flat, source, target)
        return
    values.index_copy_(0, target, values.index_select(0, source))


@torch.no_grad()
def move_at(values: Tensor, source: tuple[Tensor, ...], target: tuple[Tensor, ...]) -> None:
    """`move` for places with several coordinates: values[target] = values[source].

    Args:
        values: [.., width] with any strides; a view of the cache.
        source: an int64 [count] for each axis but the last.
        target: the same; none of the places occurs twice, or in `source`.
    """
    if values.stride(-1) != 1 or not values.numel() or not kernels.available(values.device):
        values[target] = values[source]
        return
    from kvrescue.kernels.compaction import move

    # Every number of the cache as the first of an entry: places are then offsets.
    sizes, strides = values.shape[:-1], values.stride()[:-1]
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    entries = values.as_strided((last + 1, values.shape[-1]), (1, 1))
    from_, to = (
        sum((i * s for i, s in zip(place, strides, strict=True)), start=torch.zeros_like(place[0]))
        for place in (source, target)
    )
    move(entries, from_, to)


def _flat(values: Tensor, lead: int) -> Tensor | None:
    """All that follows the `lead` first axes as one contiguous axis; None where it is not."""
    rest = values[(0,) * lead] if all(values.shape[:lead]) else None
    if rest is None or not rest.is_contiguous():
        return None
    return values.flatten(lead) if rest.dim() else values.unsqueeze(lead)


def _ascends(kept: Tensor) -> bool:
    return bool((kept[:, 1:] > kept[:, :-1]).all())

"""Entries of a cache change their places, in place.

`compact` moves kept slots to the front. That needs no scratch copy, because the kept slots ascend:
the j-th of them is never before place j, so kept[j] >= j. A program owns a block of the numbers of
every slot of one (row, KV head), and goes through the places in ascending tiles. When it has
written the places below b, all that it has still to read are slots kept[j] >= j >= b, which nothing
has touched. Within a tile everything is read before anything is written, with a barrier in between.
Programs never meet: they own different pairs, or different numbers of the same slots.

`move` copies single entries to places that no move reads from, so its order does not matter.
"""

from __future__ import annotations

import triton
from torch import Tensor

from kvrescue.kernels import _compaction as device
from kvrescue.kernels._launch import on_its_device

__all__ = ["compact", "move"]

TILE = 16
"""Slots that a program moves at once."""
BLOCK = 128
"""Numbers of a slot that a program moves at most."""


@on_its_device
def compact(values: Tensor, kept: Tensor) -> None:
    """values[p, j] = values[p, kept[p, j]] for all j, in place.

    Args:
        values: [pairs, slots, width] of any dtype; the last axis is contiguous.
        kept: [pairs, count] integers, ascending in each row and less than `slots`.
    """
    pairs, count = kept.shape
    width = values.shape[2]
    if not pairs or not count or not width:
        return
    kept = kept.contiguous()
    block = min(BLOCK, triton.next_power_of_2(width))
    device.compact_kernel[pairs, triton.cdiv(width, block)](
        values,
        kept,
        count,
        width,
        values.stride(0),
        values.stride(1),
        kept.stride(0),
        tile=TILE,
        block=block,
        num_warps=4,
    )


@on_its_device
def move(values: Tensor, source: Tensor, target: Tensor) -> None:
    """values[target[i]] = values[source[i]] for all i, in place.

    Args:
        values: [entries, width] of any dtype; the last axis is contiguous. Entries may overlap in
            memory only where no move reads or writes.
        source: [count] integers.
        target: [count] integers; none of them occurs twice, or in `source`.
    """
    count, width = len(source), values.shape[1]
    if not count or not width:
        return
    block = min(BLOCK, triton.next_power_of_2(width))
    device.move_kernel[triton.cdiv(count, TILE), triton.cdiv(width, block)](
        values,
        source.contiguous(),
        target.contiguous(),
        count,
        width,
        values.stride(0),
        tile=TILE,
        block=block,
        num_warps=4,
    )

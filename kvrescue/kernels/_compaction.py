"""Device code of `compaction`."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def compact_kernel(
    values,
    kept,
    count,
    width,
    pair_stride,
    slot_stride,
    kept_stride,
    tile: tl.constexpr,
    block: tl.constexpr,
):
    """One program per pair and block of numbers; see `compaction.compact` for why it may."""
    pair = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1) * block + tl.arange(0, block)
    values += pair * pair_stride
    kept += pair * kept_stride
    for start in range(0, count, tile):
        place = start + tl.arange(0, tile)
        slot = tl.load(kept + place, mask=place < count, other=0).to(tl.int64)
        moves = ((place < count) & (slot != place))[:, None] & (part < width)[None, :]
        found = tl.load(values + slot[:, None] * slot_stride + part[None, :], mask=moves)
        tl.debug_barrier()  # a thread's target may be another thread's source
        to = values + place.to(tl.int64)[:, None] * slot_stride + part[None, :]
        tl.store(to, found, mask=moves)


@triton.jit(do_not_specialize=["count"])
def move_kernel(
    values,
    source,
    target,
    count,
    width,
    entry_stride,
    tile: tl.constexpr,
    block: tl.constexpr,
):
    """Entries source[i] -> target[i]; one program per tile of moves and block of numbers."""
    move = tl.program_id(0) * tile + tl.arange(0, tile)
    part = tl.program_id(1) * block + tl.arange(0, block)
    mask = (move < count)[:, None] & (part < width)[None, :]
    from_ = tl.load(source + move, mask=move < count, other=0).to(tl.int64) * entry_stride
    to = tl.load(target + move, mask=move < count, other=0).to(tl.int64) * entry_stride
    found = tl.load(values + from_[:, None] + part[None, :], mask=mask)
    tl.store(values + to[:, None] + part[None, :], found, mask=mask)

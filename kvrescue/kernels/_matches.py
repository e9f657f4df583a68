"""Device code of the search for R-KV's last matches."""

import triton
import triton.language as tl

from kvrescue.kernels._rkv import load_vectors


@triton.jit(do_not_specialize=["length"])
def match_kernel(
    keys,
    lengths,
    inverse,
    match,
    similarity,
    length,
    kv_heads,
    head_dim: tl.constexpr,
    key_row_stride,
    key_head_stride,
    key_entry_stride,
    key_dim_stride,
    threshold,
    widen: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_d: tl.constexpr,
    part: tl.constexpr,
):
    """The last j with S_ij > threshold (0 if there is none) and S_ij, for `block_m` rows i of S;
    searched from the newest entry, until every row has one."""
    pair = tl.program_id(0).to(tl.int64)
    row, head = pair // kv_heads, pair % kv_heads
    stride = length
    if lengths is not None:
        length = tl.load(lengths + row).to(tl.int32)
    keys += row * key_row_stride + head * key_head_stride
    inverse += pair * stride
    mine = tl.program_id(1) * block_m + tl.arange(0, block_m)
    here = mine < length
    shrink = tl.load(inverse + mine, mask=here, other=0.0)
    found = tl.zeros([block_m], dtype=tl.int32)
    value = tl.zeros([block_m], dtype=tl.float32)
    pending = here.to(tl.int32)
    start = (length - 1) // block_n * block_n
    while (start >= 0) & (tl.max(pending, axis=0) > 0):
        entry = start + tl.arange(0, block_n)
        across = tl.load(inverse + entry, mask=entry < length, other=0.0)
        s = tl.zeros([block_m, block_n], dtype=tl.float32)
        for first in range(0, block_d, part):  # float32 products take a register per number
            here_keys = keys + first * key_dim_stride
            key = load_vectors(
                here_keys,
                mine,
                length,
                key_entry_stride,
                key_dim_stride,
                head_dim - first,
                widen,
                part,
            )
            other = load_vectors(
                here_keys,
                entry,
                length,
                key_entry_stride,
                key_dim_stride,
                head_dim - first,
                widen,
                part,
            )
            s = tl.dot(key, tl.trans(other), s, input_precision="ieee")
        s *= shrink[:, None] * across[None, :]
        s = tl.where(mine[:, None] == entry[None, :], 0.0, s)
        hit = (s > threshold) & (entry < length)[None, :]
        last = tl.maximum(tl.max(tl.where(hit, entry[None, :], -1), axis=1), 0)
        matched = tl.max(hit.to(tl.int32), axis=1)
        # A row without a match ends with what it has in column 0, which is in the last block.
        at = tl.sum(tl.where(entry[None, :] == last[:, None], s, 0.0), axis=1)
        value = tl.where(pending > 0, at, value)
        found = tl.where(pending > 0, last, found)
        pending = pending * (1 - matched)
        start -= block_n
    tl.store(match + pair * stride + mine, found, mask=here)
    tl.store(similarity + pair * stride + mine, value, mask=here)

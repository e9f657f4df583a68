"""Device code of `rkv`. A pair is a row and a KV head; see there for the formulas."""

import triton
import triton.language as tl

EPSILON: tl.constexpr = tl.constexpr(1e-8)


@triton.jit
def load_vectors(
    base,
    index,
    count,
    index_stride,
    dim_stride,
    head_dim,
    widen: tl.constexpr,
    block_d: tl.constexpr,
):
    """[len(index), block_d] keys or queries; zeros from `count` and `head_dim` on.

    `widen` is for Triton's interpreter, whose dot products take bfloat16 for integers.
    """
    dim = tl.arange(0, block_d)
    mask = (index < count)[:, None] & (dim < head_dim)[None, :]
    offset = index[:, None] * index_stride + dim[None, :] * dim_stride
    found = tl.load(base + offset, mask=mask, other=0.0)
    if widen:
        found = found.to(tl.float32)
    return found


@triton.jit
def group_logits(
    queries,
    key,
    entry,
    time,
    positions,
    length,
    past,
    observed,
    head_dim: tl.constexpr,
    head_stride,
    time_stride,
    dim_stride,
    scale,
    group: tl.constexpr,
    causal: tl.constexpr,
    widen: tl.constexpr,
    block_t: tl.constexpr,
    block_n: tl.constexpr,
    block_d: tl.constexpr,
):
    """[block_t, block_n] largest logit of the query group; -inf where an entry is not past."""
    across = tl.trans(key)
    logits = tl.full([block_t, block_n], float("-inf"), dtype=tl.float32)
    for member in range(group):
        query = load_vectors(
            queries + member * head_stride,
            time,
            observed,
            time_stride,
            dim_stride,
            head_dim,
            widen,
            block_d,
        )
        found = tl.dot(query, across, input_precision="ieee")
        logits = tl.maximum(logits, found, propagate_nan=tl.PropagateNan.ALL)
    logits *= scale
    if causal:
        back = observed - 1 - time
        if positions is not None:
            place = tl.load(positions + entry, mask=entry < length, other=0)
            newest = tl.load(positions + length - 1)
            unseen = place[None, :] > newest - back[:, None]
        else:
            unseen = entry[None, :] > length - 1 - back[:, None]
        logits = tl.where(unseen, -3.4028234663852886e38, logits)  # as torch.finfo.min: not -inf
    return tl.where((entry < past)[None, :], logits, float("-inf"))


@triton.jit(do_not_specialize=["length", "window", "observed"])
def prepare_kernel(
    keys,
    queries,
    positions,
    lengths,
    inverse,
    total,
    largest,
    weight,
    length,
    window,
    observed,
    kv_heads,
    head_dim: tl.constexpr,
    key_row_stride,
    key_head_stride,
    key_entry_stride,
    key_dim_stride,
    query_row_stride,
    query_head_stride,
    query_time_stride,
    query_dim_stride,
    position_row_stride,
    position_head_stride,
    scale,
    group: tl.constexpr,
    causal: tl.constexpr,
    widen: tl.constexpr,
    block_t: tl.constexpr,
    block_n: tl.constexpr,
    block_d: tl.constexpr,
):
    """Per pair: 1 / (|k| + 1e-8) of each key and the sum of the unit keys; per query the maximum
    and the sum of its softmax over the past. One program per pair and `block_t` queries."""
    pair = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    row, head = pair // kv_heads, pair % kv_heads
    stride = length
    if lengths is not None:
        length = tl.load(lengths + row).to(tl.int32)
    past = length - window
    keys += row * key_row_stride + head * key_head_stride
    queries += row * query_row_stride + head * group * query_head_stride
    if positions is not None:
        positions += row * position_row_stride + head * position_head_stride
    time = chunk * block_t + tl.arange(0, block_t)
    dim = tl.arange(0, block_d)
    top = tl.full([block_t], float("-inf"), dtype=tl.float32)
    summed = tl.zeros([block_t], dtype=tl.float32)
    units = tl.zeros([block_d], dtype=tl.float32)
    for start in range(0, length, block_n):
        entry = start + tl.arange(0, block_n)
        key = load_vectors(
            keys,
            entry,
            length,
            key_entry_stride,
            key_dim_stride,
            head_dim,
            widen,
            block_d,
        )
        if chunk == 0:
            wide = key.to(tl.float32)
            shrink = 1.0 / (tl.sqrt(tl.sum(wide * wide, axis=1)) + EPSILON)
            units += tl.sum(wide * shrink[:, None], axis=0)
            tl.store(inverse + pair * stride + entry, shrink, mask=entry < length)
        if start < past:
            logits = group_logits(
                queries,
                key,
                entry,
                time,
                positions,
                length,
                past,
                observed,
                head_dim,
                query_head_stride,
                query_time_stride,
                query_dim_stride,
                scale,
                group,
                causal,
                widen,
                block_t,
                block_n,
                block_d,
            )
            higher = tl.maximum(top, tl.max(logits, axis=1))
            summed = summed * tl.exp(top - higher)
            summed += tl.sum(tl.exp(logits - higher[:, None]), axis=1)
            top = higher
    if chunk == 0:
        tl.store(total + pair * head_dim + dim, units, mask=dim < head_dim)
    tl.store(largest + pair * observed + time, top, mask=time < observed)
    tl.store(weight + pair * observed + time, summed, mask=time < observed)


@triton.jit(do_not_specialize=["length", "window", "observed"])
def terms_kernel(
    keys,
    queries,
    positions,
    lengths,
    inverse,
    total,
    largest,
    weight,
    match,
    similarity,
    again,
    seen,
    length,
    window,
    observed,
    kv_heads,
    head_dim: tl.constexpr,
    key_row_stride,
    key_head_stride,
    key_entry_stride,
    key_dim_stride,
    query_row_stride,
    query_head_stride,
    query_time_stride,
    query_dim_stride,
    position_row_stride,
    position_head_stride,
    scale,
    group: tl.constexpr,
    causal: tl.constexpr,
    widen: tl.constexpr,
    block_t: tl.constexpr,
    block_n: tl.constexpr,
    block_i: tl.constexpr,
    block_d: tl.constexpr,
):
    """Mean similarity to the others and mean attention, of `block_n` entries of a pair.

    What is exempted is summed by looking for those who exempt this entry: unlike atomic additions
    that gives the same bits every time.
    """
    pair = tl.program_id(0).to(tl.int64)
    row, head = pair // kv_heads, pair % kv_heads
    stride = length
    if lengths is not None:
        length = tl.load(lengths + row).to(tl.int32)
    past = length - window
    keys += row * key_row_stride + head * key_head_stride
    queries += row * query_row_stride + head * group * query_head_stride
    if positions is not None:
        positions += row * position_row_stride + head * position_head_stride
    first = tl.program_id(1) * block_n
    entry = first + tl.arange(0, block_n)
    dim = tl.arange(0, block_d)
    key = load_vectors(
        keys,
        entry,
        length,
        key_entry_stride,
        key_dim_stride,
        head_dim,
        widen,
        block_d,
    )
    shrink = tl.load(inverse + pair * stride + entry, mask=entry < length, other=0.0)
    units = tl.load(total + pair * head_dim + dim, mask=dim < head_dim, other=0.0)
    own = 1.0 - EPSILON * shrink  # |u|
    sums = tl.sum(key.to(tl.float32) * units[None, :], axis=1) * shrink - own * own
    if match is not None:
        for start in range(0, length, block_i):
            others = start + tl.arange(0, block_i)
            to = tl.load(match + pair * stride + others, mask=others < length, other=-1)
            less = tl.load(similarity + pair * stride + others, mask=others < length, other=0.0)
            mine = entry[:, None] == to[None, :]
            sums -= tl.sum(tl.where(mine, less[None, :], 0.0), axis=1)
    tl.store(again + pair * stride + entry, sums / length, mask=entry < length)
    if first < past:
        mean = tl.zeros([block_n], dtype=tl.float32)
        for begin in range(0, observed, block_t):
            time = begin + tl.arange(0, block_t)
            logits = group_logits(
                queries,
                key,
                entry,
                time,
                positions,
                length,
                past,
                observed,
                head_dim,
                query_head_stride,
                query_time_stride,
                query_dim_stride,
                scale,
                group,
                causal,
                widen,
                block_t,
                block_n,
                block_d,
            )
            real = time < observed
            top = tl.load(largest + pair * observed + time, mask=real, other=0.0)
            summed = tl.load(weight + pair * observed + time, mask=real, other=1.0)
            share = tl.exp(logits - top[:, None]) / summed[:, None]
            mean += tl.sum(tl.where(real[:, None], share, 0.0), axis=0)
        tl.store(seen + pair * stride + entry, mean / observed, mask=entry < past)


@triton.jit(do_not_specialize=["length", "window", "kernel_size"])
def finish_kernel(
    again,
    seen,
    lengths,
    out,
    length,
    window,
    kernel_size,
    kv_heads,
    lam,
    block: tl.constexpr,
):
    """lam * pooled attention - (1 - lam) * softmax of the similarities; 0 from the window on."""
    pair = tl.program_id(0).to(tl.int64)
    stride = length
    if lengths is not None:
        length = tl.load(lengths + pair // kv_heads).to(tl.int32)
    past = length - window
    again += pair * stride
    seen += pair * stride
    summed = tl.zeros([block], dtype=tl.float32)
    for start in range(0, length, block):
        entry = start + tl.arange(0, block)
        mean = tl.load(again + entry, mask=entry < length, other=float("-inf"))
        summed += tl.exp(mean)  # of mean cosines: none is large
    whole = tl.sum(summed, axis=0)
    for start in range(0, stride, block):
        entry = start + tl.arange(0, block)
        pooled = tl.full([block], float("-inf"), dtype=tl.float32)
        for step in range(kernel_size):
            near = entry + step - kernel_size // 2
            a = tl.load(seen + near, mask=(near >= 0) & (near < past), other=float("-inf"))
            pooled = tl.maximum(pooled, a, propagate_nan=tl.PropagateNan.ALL)
        mean = tl.load(again + entry, mask=entry < past, other=0.0)
        pooled = tl.where(entry < past, pooled, 0.0)  # there is no past near it: -inf
        score = lam * pooled - (1.0 - lam) * (tl.exp(mean) / whole)
        score = tl.where(entry < past, score, 0.0)
        tl.store(out + pair * stride + entry, score, mask=entry < stride)

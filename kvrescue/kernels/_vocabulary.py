"""Device code of `vocabulary`."""

import triton
import triton.language as tl


@triton.jit
def statistics_kernel(
    logits,
    largest,
    total,
    moment,
    vocab,
    parts,
    row_stride,
    span: tl.constexpr,
    block: tl.constexpr,
):
    """Of `span` logits x: m = max, sum of exp(x - m), sum of exp(x - m) (x - m); read once."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    logits += row * row_stride
    top = float("-inf")
    weight = tl.zeros([block], dtype=tl.float32)
    weighted = tl.zeros([block], dtype=tl.float32)
    for start in range(part * span, min((part + 1) * span, vocab), block):
        index = start + tl.arange(0, block)
        inside = index < vocab
        x = tl.load(logits + index, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        # What was summed relative to the old maximum, relative to the new one.
        shift = tl.where(top == float("-inf"), 0.0, top - higher)
        scale = tl.exp(shift)
        x = tl.where(inside, x - higher, 0.0)
        e = tl.exp(x)
        weighted = (weighted + shift * weight) * scale + tl.where(inside, e * x, 0.0)
        weight = weight * scale + tl.where(inside, e, 0.0)
        top = higher
    out = row * parts + part
    tl.store(largest + out, top)
    tl.store(total + out, tl.sum(weight, axis=0))
    tl.store(moment + out, tl.sum(weighted, axis=0))


@triton.jit
def combine_kernel(
    largest,
    total,
    moment,
    out_largest,
    out_normaliser,
    out_entropy,
    parts,
    block: tl.constexpr,
):
    """The parts of a row, and ln Z and H = ln sum - E[x - m] of the whole."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, block)
    inside = index < parts
    m = tl.load(largest + row * parts + index, mask=inside, other=float("-inf"))
    weight = tl.load(total + row * parts + index, mask=inside, other=0.0)
    weighted = tl.load(moment + row * parts + index, mask=inside, other=0.0)
    top = tl.max(m, axis=0)
    shift = tl.where(inside, m - top, 0.0)
    scale = tl.exp(shift)
    weighted = tl.sum((weighted + shift * weight) * scale, axis=0)
    weight = tl.sum(weight * scale, axis=0)
    tl.store(out_largest + row, top)
    tl.store(out_normaliser + row, top + tl.log(weight))
    tl.store(out_entropy + row, tl.log(weight) - weighted / weight)

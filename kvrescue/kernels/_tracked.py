"""The compiled half of `kvrescue.kernels.tracked`: one pair of row and KV head after the other.

All arrays are flat; a pair's part begins at `pair * stride`. A slot is a place in the cache, a rank
counts from the oldest entry. What belongs to one pair fits the nearest cache of a CPU, so memory is
read once, where operations of torch would read and write it one after the other.

Sums are in whatever order vectors like, but NaN and infinities are not assumed away.
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

# Those of `states`, in numbers: numba keeps what it compiled until *this* file changes.
NONE, OPEN, STALE = -1, -2, -3

OPTIONS = {
    "nogil": True,
    "fastmath": {"reassoc", "contract", "nsz"},
    "error_model": "numpy",
}

LOG2E = np.float32(1.4426950408889634)
LN2 = np.float32(0.6931471805599453)
LEAST = np.float32(-103.9)  # e to less is 0 in float32
EPSILON = np.float32(1e-8)

KEPT = []
"""Of every function, whether what is compiled outlives the process."""


def compiled(function):
    """`function`, compiled when it is called first; what is compiled is kept where that can be."""
    try:
        made = njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # no folder to keep it in
        KEPT.append(False)
        return njit(**OPTIONS)(function)
    KEPT.append(True)
    return made


@intrinsic
def bits_as_float(_context, _bits):
    """The float32 of these 32 bits."""

    def code(context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), code


@compiled
def exp(x):
    """e ** x for x <= 0, in arithmetic that becomes vectors."""
    whole = np.int32(x * LOG2E - np.float32(0.5))
    r = x - np.float32(whole) * LN2
    y = np.float32(1 / 5040)
    y = y * r + np.float32(1 / 720)
    y = y * r + np.float32(1 / 120)
    y = y * r + np.float32(1 / 24)
    y = y * r + np.float32(1 / 6)
    y = y * r + np.float32(1 / 2)
    y = y * r + np.float32(1)
    y = y * r + np.float32(1)
    # In two halves: the whole power may be smaller than the smallest normal float32.
    half = whole >> np.int32(1)
    y *= bits_as_float(np.int32((half + np.int32(127)) << np.int32(23)))
    y *= bits_as_float(np.int32((whole - half + np.int32(127)) << np.int32(23)))
    return np.float32(0) if x <= LEAST else y


@compiled
def dot(a, b, dim):
    found = np.float32(0)
    for d in range(dim):
        found += a[d] * b[d]
    return found


@compiled
def norm(a, dim):
    """Summed up in float64, where no square of a float32 is too large or too small."""
    found = np.float64(0)
    for d in range(dim):
        found += np.float64(a[d]) * np.float64(a[d])
    return np.float32(np.sqrt(found))


@compiled
def larger(a, b):
    """NaN where either is, as torch's maximum; Python's keeps the first."""
    return a if a > b or a != a else b


@compiled
def rkv_pairs(
    first,
    last,
    keys,
    key_stride,
    length,
    dim,
    queries,
    group,
    observed,
    order,
    order_stride,
    logical,
    heads,
    inverse,
    total,
    seen,
    ring,
    match,
    similarity,
    stride,
    new,
    window,
    kernel_size,
    lam,
    threshold,
    out,
):
    """Pairs first .. last; the arguments are those of `tracked.score_rkv`, flat."""
    asked = group * observed
    past, start = length - window, length - new
    right = np.empty((1 + new + asked, dim), np.float32)
    products = np.empty((1 + new + asked, length), np.float32)
    sums, fresh, said = products[0], products[1 : 1 + new], products[1 + new :]
    spare = np.empty((3, length), np.float32)
    attended = np.empty(past, np.float32)
    for pair in range(first, last):
        k = keys[pair * key_stride : pair * key_stride + length * dim]
        inv = inverse[pair * stride : pair * stride + length]
        slots = order[pair * order_stride : pair * order_stride + length]
        whole = total[pair * dim : (pair + 1) * dim]
        for i in range(new):
            key = k[(start + i) * dim : (start + i + 1) * dim]
            inv[start + i] = np.float32(1) / (norm(key, dim) + EPSILON)
            for d in range(dim):
                right[1 + i, d] = key[d] * inv[start + i]
                whole[d] += right[1 + i, d]
        right[0] = whole
        right[1 + new :] = queries[pair * asked * dim : (pair + 1) * asked * dim].reshape(
            asked, dim
        )
        multiply(k, right, products)  # the one pass over the keys
        for j in range(length):
            tiny = inv[j] * EPSILON  # |u|^2 = (1 - tiny)^2; its 1 is all the same to a softmax
            sums[j] = sums[j] * inv[j] + tiny * (np.float32(2) - tiny)
        if len(match) > 0:
            for i in range(new):
                for j in range(length):
                    fresh[i, j] *= inv[j]
            matched = match[pair * stride : pair * stride + length]
            similar = similarity[pair * stride : pair * stride + length]
            find_matches(k, dim, inv, slots, fresh, matched, similar, threshold)
            for j in range(length):
                sums[matched[j] if matched[j] >= 0 else slots[0]] -= similar[j]
        softmax(sums, np.float32(1) / np.float32(length))
        logits = seen[pair * stride * ring : (pair * stride + length) * ring]
        observe(said, group, logits, ring, logical[pair // heads], dim)
        importance(logits, ring, slots[:past], spare, attended)
        row = out[pair * length : (pair + 1) * length]
        pool(attended, kernel_size // 2, True, row[:past])
        for rank in range(past):
            row[rank] = lam * row[rank] - (np.float32(1) - lam) * sums[slots[rank]]
        row[past:] = np.float32(0)


@compiled
def snapkv_pairs(
    first,
    last,
    keys,
    key_stride,
    length,
    dim,
    queries,
    group,
    observed,
    order,
    order_stride,
    logical,
    heads,
    seen,
    stride,
    ring,
    window,
    kernel_size,
    largest,
    out,
):
    """Pairs first .. last; the arguments are those of `tracked.score_snapkv`, flat."""
    asked, past = group * observed, length - window
    said = np.empty((asked, length), np.float32)
    spare = np.empty((3, length), np.float32)
    attended = np.empty(past, np.float32)
    for pair in range(first, last):
        k = keys[pair * key_stride : pair * key_stride + length * dim]
        slots = order[pair * order_stride : pair * order_stride + past]
        right = queries[pair * asked * dim : (pair + 1) * asked * dim].reshape(asked, dim)
        multiply(k, right, said)
        logits = seen[pair * stride * ring : (pair * stride + length) * ring]
        observe(said, group, logits, ring, logical[pair // heads], dim)
        importance(logits, ring, slots, spare, attended)
        row = out[pair * length : (pair + 1) * length]
        pool(attended, kernel_size // 2, largest, row[:past])
        row[past:] = np.float32(0)


@compiled
def multiply(k, right, products):
    """products [columns, length] of the keys, flat, with the vectors of `right` [columns, dim]."""
    columns, dim = right.shape
    length = products.shape[1]
    fours = columns - columns % 4
    for j in range(0, length - 1, 2):
        k0, k1 = k[j * dim : (j + 1) * dim], k[(j + 1) * dim : (j + 2) * dim]
        # Two keys and four vectors share what is read of each other, and their sums fit registers.
        for c in range(0, fours, 4):
            v0, v1, v2, v3 = right[c], right[c + 1], right[c + 2], right[c + 3]
            s00, s01, s02, s03 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            s10, s11, s12, s13 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for d in range(dim):
                s00 += k0[d] * v0[d]
                s01 += k0[d] * v1[d]
                s02 += k0[d] * v2[d]
                s03 += k0[d] * v3[d]
                s10 += k1[d] * v0[d]
                s11 += k1[d] * v1[d]
                s12 += k1[d] * v2[d]
                s13 += k1[d] * v3[d]
            products[c, j], products[c, j + 1] = s00, s10
            products[c + 1, j], products[c + 1, j + 1] = s01, s11
            products[c + 2, j], products[c + 2, j + 1] = s02, s12
            products[c + 3, j], products[c + 3, j + 1] = s03, s13
        for c in range(fours, columns):
            v0 = right[c]
            s00, s10 = np.float32(0), np.float32(0)
            for d in range(dim):
                s00 += k0[d] * v0[d]
                s10 += k1[d] * v0[d]
            products[c, j], products[c, j + 1] = s00, s10
    if length % 2:
        for c in range(columns):
            products[c, length - 1] = dot(k[(length - 1) * dim : length * dim], right[c], dim)


@compiled
def softmax(values, factor):
    """Of values * factor, in place."""
    largest = values[0]
    for j in range(len(values)):
        largest = max(largest, values[j])
    for j in range(len(values)):
        values[j] = exp((values[j] - largest) * factor)
    whole = np.float32(0)
    for j in range(len(values)):
        whole += values[j]
    whole = np.float32(1) / whole
    for j in range(len(values)):
        values[j] *= whole


@compiled
def observe(said, group, logits, ring, logical, dim):
    """The largest logits of the group take the places of the oldest queries in the ring."""
    observed, length = said.shape[0] // group, said.shape[1]
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    for q in range(observed):
        place = (logical - observed + q) % ring
        for g in range(1, group):
            for j in range(length):
                said[q, j] = larger(said[q, j], said[g * observed + q, j])
        for j in range(length):
            logits[j * ring + place] = said[q, j] * scale


@compiled
def importance(logits, ring, slots, spare, out):
    """out [len(slots)]: mean over the queries of the softmax over the entries at `slots`.

    Works through all slots: what lies side by side is read faster than what is picked.
    """
    row, hidden, mean = spare[0], spare[1], spare[2]
    length = len(row)
    hidden[:] = np.float32(1)
    for slot in slots:
        hidden[slot] = np.float32(0)
    mean[:] = np.float32(0)
    for q in range(ring):
        for j in range(length):
            row[j] = logits[j * ring + q]
        for j in range(length):  # not by adding -inf, which NaN and infinities survive
            row[j] = row[j] if hidden[j] == np.float32(0) else np.float32(-np.inf)
        softmax(row, np.float32(1))
        for j in range(length):
            mean[j] += row[j]
    for rank in range(len(slots)):
        out[rank] = mean[slots[rank]] / np.float32(ring)


@compiled
def pool(values, half, largest, out):
    """Of `half` neighbours to either side the largest, or the mean with zeros beyond the ends."""
    length = len(values)
    out[:] = values
    for shift in range(1, min(half, length - 1) + 1):
        if largest:
            for i in range(length - shift):
                out[i] = max(out[i], values[i + shift])
                out[i + shift] = max(out[i + shift], values[i])
        else:
            for i in range(length - shift):
                out[i] += values[i + shift]
                out[i + shift] += values[i]
    if not largest:
        for i in range(length):
            out[i] /= np.float32(2 * half + 1)


@compiled
def find_matches(k, dim, inv, slots, fresh, matched, similar, threshold):
    """The last match of every entry, now that those with `fresh` similarities have come."""
    new, length = fresh.shape
    start = length - new
    for i in range(new):
        fresh[i, start + i] = np.float32(0)  # nothing matches itself
        matched[start + i] = OPEN
    for i in range(new):  # oldest first: the last match stays
        row, slot = fresh[i], np.int32(start + i)
        for j in range(length):
            over = row[j] > threshold
            matched[j] = slot if over else matched[j]
            similar[j] = row[j] if over else similar[j]
    for j in range(length):
        if matched[j] == STALE:
            similar[j] = between(k, dim, inv, slots[0], j)
            matched[j] = NONE
        elif matched[j] == OPEN:
            matched[j] = NONE
            for rank in range(length - 1, -1, -1):
                other = slots[rank]
                found = fresh[j - start, other] if j >= start else between(k, dim, inv, other, j)
                similar[j] = found  # that to the oldest, if there is no match
                if found > threshold:
                    matched[j] = other
                    break


@compiled
def between(k, dim, inv, i, j):
    """Similarity of the entries at two slots."""
    if i == j:
        return np.float32(0)
    return dot(k[i * dim : (i + 1) * dim], k[j * dim : (j + 1) * dim], dim) * inv[i] * inv[j]


@compiled
def forget_pairs(first, last, order, stride, length, gone, slots, dropped):
    """Pairs first .. last; the arguments are those of `tracked.forget`, flat."""
    for pair in range(first, last):
        ranks = order[pair * stride : pair * stride + length]
        skipped = 0
        for rank in range(gone[pair * dropped], length):
            if skipped < dropped and rank == gone[pair * dropped + skipped]:
                skipped += 1
            else:
                ranks[rank - skipped] = ranks[rank]
        for i in range(dropped):
            ranks[length - 2 * dropped + i] = slots[pair * dropped + i]


@compiled
def drop_pairs(
    first,
    last,
    keys,
    key_stride,
    length,
    dim,
    order,
    order_stride,
    inverse,
    total,
    match,
    stride,
    slots,
    sources,
    dropped,
):
    """Pairs first .. last; the arguments are those of `tracked.drop`, flat."""
    names = np.arange(length).astype(np.int32)
    for pair in range(first, last):
        gone = slots[pair * dropped : (pair + 1) * dropped]
        movers = sources[pair * dropped : (pair + 1) * dropped]
        oldest = order[pair * order_stride]
        alone = np.int32(NONE)
        for slot in gone:
            at, weight = pair * key_stride + slot * dim, inverse[pair * stride + slot]
            for d in range(dim):
                total[pair * dim + d] -= keys[at + d] * weight
            if slot == oldest:
                alone = np.int32(STALE)
        if len(match) == 0:
            continue
        for i in range(dropped):
            names[movers[i]] = gone[i]
        for slot in gone:
            names[slot] = OPEN
        matched = match[pair * stride : pair * stride + length]
        for j in range(length):
            if matched[j] >= 0:
                matched[j] = names[matched[j]]
            elif matched[j] == NONE:
                matched[j] = alone
        for i in range(dropped):
            names[movers[i]] = movers[i]
            names[gone[i]] = gone[i]

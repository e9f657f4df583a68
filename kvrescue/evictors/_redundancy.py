"""R-KV's redundancy term without the matrix of all pairs.

With u_j = k_j / (|k_j| + 1e-8), S_ij = u_i . u_j, S_ii = 0, and S[i, r_i] = 0 where r_i is the last
j with S_ij > threshold (0 when there is none), the redundancy is softmax_j of (1/n) sum_i S_ij.
That sum is

    u_j . sum_i u_i  -  |u_j|^2  -  sum over {i : r_i = j} of S_ij

so only r_i needs pairs. It is searched from the newest entry: on real keys nine rows of ten match
among the last eight entries. The few rows that do not are then compared with all entries at once;
a head in which they are many is searched in column blocks. Only a head without any matches costs
O(n^2 * dim), in O(n) memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvrescue.evictors.tensors import rows_at

__all__ = ["EPSILON", "Matches", "last_matches", "redundancy"]

EPSILON = 1e-8
_FIRST_BLOCK = 8
_BLOCK = 32
_SMALL = 64
"""Up to this length the whole S at once is cheaper than searching it."""


def redundancy(keys: Tensor, threshold: float | None) -> Tensor:
    """float32 keys [pairs, n, dim] -> [pairs, n]; `threshold` None exempts nothing."""
    length = keys.shape[1]
    norms = torch.linalg.vector_norm(keys, dim=-1, keepdim=True)
    inverse = (norms + EPSILON).reciprocal_()
    unit = keys * inverse
    total = unit.sum(1, keepdim=True)
    own = norms.mul_(inverse).square_().squeeze(2)
    if threshold is None:
        sums = torch.bmm(total, unit.mT).squeeze(1) - own
    else:
        # One pass over the keys for both the sums and the newest columns of S.
        start = _first(length)
        products = torch.bmm(torch.cat((total, unit[:, start:]), dim=1), unit.mT)
        sums = products[:, 0] - own
        matches = _search(unit, threshold, products[:, 1:], start)
        sums.scatter_add_(1, matches.entry.clamp(min=0), -matches.similarity)
    return torch.softmax(sums.div_(length), dim=-1)


def last_matches(unit: Tensor, threshold: float) -> Matches:
    """r_i and S[i, r_i] of unit keys [pairs, n, dim] in temporal order."""
    start = _first(unit.shape[1])
    return _search(unit, threshold, torch.bmm(unit[:, start:], unit.mT), start)


def _first(length: int) -> int:
    return 0 if length <= _SMALL else length - _FIRST_BLOCK


def _search(unit: Tensor, threshold: float, newest: Tensor, start: int) -> Matches:
    """`newest` [pairs, n - start, n]: the columns start.. of S, transposed."""
    matches = Matches(unit, threshold)
    matches.finish(matches.columns(newest, start, None), start)
    return matches


class Matches:
    """The last match r_i of each row and S[i, r_i], filled by column blocks."""

    def __init__(self, unit: Tensor, threshold: float) -> None:
        self.unit = unit
        self.threshold = threshold
        self.entry = torch.full(unit.shape[:2], -1, dtype=torch.int64, device=unit.device)
        """[pairs, n] r_i; -1 where nothing matches (S[i, 0] is then what is exempted)."""
        self.similarity = unit.new_zeros(unit.shape[:2])
        """[pairs, n] S[i, r_i]."""

    def columns(self, block: Tensor, start: int, pending: Tensor | None) -> Tensor:
        """Settle the pending rows (None = all) that match in columns start.. of S.

        block [pairs, columns, n] = S transposed, diagonal not yet cleared. Returns which rows
        [pairs, n] still have no match; at start 0 those exempt column 0 and are settled, too.
        """
        width = block.shape[1]
        block[:, :, start : start + width].diagonal(dim1=1, dim2=2).zero_()
        order = torch.arange(1, width + 1, dtype=_int_for(width), device=block.device)
        last = ((block > self.threshold) * order[:, None]).amax(1)
        found = last > 0 if pending is None else (last > 0) & pending
        column = (last.to(torch.int64) - 1).clamp_(min=0)
        value = block.gather(1, column.unsqueeze(1)).squeeze(1)
        settled = found if start else pending
        if settled is None:
            self.similarity = value
        else:
            self.similarity = torch.where(settled, value, self.similarity)
        self.entry = torch.where(found, column.add_(start), self.entry)
        return ~found if pending is None else pending & ~found

    def finish(self, pending: Tensor, stop: int) -> None:
        """Settle the pending rows; columns stop.. are already searched."""
        if stop == 0:
            return
        counts = pending.sum(1)
        if int(counts.max()) <= self.limit:
            self._few(pending, counts)
            return
        # Usually one head of a layer: the others need not wait for it.
        many = counts > self.limit
        for group in (many, ~many):
            index = group.nonzero().squeeze(1)
            if not len(index):
                continue
            part = Matches(self.unit[index], self.threshold)
            part.entry, part.similarity = self.entry[index], self.similarity[index]
            if group is many:
                part._blocks(pending[index], stop)
            else:
                part._few(pending[index], counts[index])
            self.entry[index], self.similarity[index] = part.entry, part.similarity

    @property
    def limit(self) -> int:
        """So many pending rows of a pair are cheaper to compare with everything at once."""
        return min(max(16, self.unit.shape[1] // 6), 64)

    def _blocks(self, pending: Tensor, stop: int) -> None:
        """Column blocks from `stop` towards 0 until few rows are pending."""
        while stop:
            start = max(0, stop - _BLOCK)
            block = torch.bmm(self.unit[:, start:stop], self.unit.mT)
            pending = self.columns(block, start, pending)
            counts = pending.sum(1)
            if start and int(counts.max()) <= self.limit:
                self._few(pending, counts)
                return
            stop = start

    def _few(self, pending: Tensor, counts: Tensor) -> None:
        """All columns at once for the pending rows, `counts` per pair."""
        most = int(counts.max())
        if most == 0:
            return
        length = self.unit.shape[1]
        rows = pending_rows(pending, most)
        similar = torch.bmm(rows_at(self.unit, rows), self.unit.mT)
        similar.scatter_(2, rows.unsqueeze(2), 0.0)
        entry, value = last_above(similar, self.threshold)
        # Rows beyond a pair's count are settled ones (row 0 again): they must not be written.
        real = torch.arange(most, device=rows.device) < counts[:, None]
        rows = torch.where(real, rows, length)  # one spare column takes what is not real
        for name, found in (("entry", entry), ("similarity", value)):
            wide = torch.nn.functional.pad(getattr(self, name), (0, 1))
            setattr(self, name, wide.scatter_(1, rows, found)[:, :length])


def pending_rows(pending: Tensor, most: int) -> Tensor:
    """[pairs, most]: indices of the True entries of `pending` [pairs, n], then zeros."""
    pairs, length = pending.shape
    # The m-th pending row of a pair goes to slot m; all others to slot 0, which is cut off.
    slot = pending.cumsum(1) * pending
    places = torch.arange(length, device=pending.device).expand(pairs, -1)
    rows = torch.zeros((pairs, most + 1), dtype=torch.int64, device=pending.device)
    return rows.scatter_(1, slot, places)[:, 1:]


def last_above(similar: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Of S's rows [pairs, m, n] in temporal order: r (-1: none) and S[i, r] (none: S[i, 0])."""
    length = similar.shape[2]
    order = torch.arange(1, length + 1, dtype=_int_for(length), device=similar.device)
    entry = ((similar > threshold) * order).amax(2).to(torch.int64) - 1
    return entry, similar.gather(2, entry.clamp(min=0).unsqueeze(2)).squeeze(2)


def _int_for(largest: int) -> torch.dtype:
    """The narrowest integer type that holds `largest`: the search reads it once per pair."""
    return torch.int8 if largest < 2**7 else torch.int16 if largest < 2**15 else torch.int32

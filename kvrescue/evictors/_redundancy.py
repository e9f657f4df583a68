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

__all__ = ["redundancy"]

_EPS = 1e-8
_FIRST_BLOCK = 8
_BLOCK = 32
_SMALL = 64
"""Up to this length the whole S at once is cheaper than searching it."""


def redundancy(keys: Tensor, threshold: float | None) -> Tensor:
    """float32 keys [pairs, n, dim] -> [pairs, n]; `threshold` None exempts nothing."""
    length = keys.shape[1]
    norms = torch.linalg.vector_norm(keys, dim=-1, keepdim=True)
    inverse = (norms + _EPS).reciprocal_()
    unit = keys * inverse
    total = unit.sum(1, keepdim=True)
    own = norms.mul_(inverse).square_().squeeze(2)
    if threshold is None:
        sums = torch.bmm(total, unit.mT).squeeze(1) - own
    else:
        start = 0 if length <= _SMALL else length - _FIRST_BLOCK
        # One pass over the keys for both the sums and the newest columns of S.
        products = torch.bmm(torch.cat((total, unit[:, start:]), dim=1), unit.mT)
        sums = products[:, 0] - own
        search = _Search(unit, sums, threshold)
        search.finish(search.columns(products[:, 1:], start, None), start)
    return torch.softmax(sums.div_(length), dim=-1)


class _Search:
    """Finds r_i of each row and takes S[i, r_i] out of `sums` [pairs, n], in place."""

    def __init__(self, unit: Tensor, sums: Tensor, threshold: float) -> None:
        self.unit = unit
        self.sums = sums
        self.threshold = threshold

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
        exempt = block.gather(1, column.unsqueeze(1)).squeeze(1)
        settled = found if start else pending
        if settled is not None:
            exempt.mul_(settled)
        self.sums.scatter_add_(1, column.add_(start), exempt.neg_())
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
            part = _Search(self.unit[index], self.sums[index], self.threshold)
            if group is many:
                part._blocks(pending[index], stop)
            else:
                part._few(pending[index], counts[index])
            self.sums[index] = part.sums

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
        pairs, length, dim = self.unit.shape
        device = self.unit.device
        # The m-th pending row of a pair goes to slot m; all others to slot 0, which is cut off.
        slot = pending.cumsum(1) * pending
        places = torch.arange(length, device=device).expand(pairs, -1)
        rows = torch.zeros((pairs, most + 1), dtype=torch.int64, device=device)
        rows = rows.scatter_(1, slot, places)[:, 1:]
        flat = (rows + torch.arange(0, pairs * length, length, device=device)[:, None]).flatten()
        chosen = self.unit.reshape(-1, dim).index_select(0, flat).view(pairs, most, dim)
        similar = torch.bmm(chosen, self.unit.mT)
        similar.scatter_(2, rows.unsqueeze(2), 0.0)
        order = torch.arange(1, length + 1, dtype=_int_for(length), device=device)
        last = ((similar > self.threshold) * order).amax(2)
        column = (last.to(torch.int64) - 1).clamp_(min=0)
        exempt = similar.gather(2, column.unsqueeze(2)).squeeze(2)
        exempt.mul_(torch.arange(most, device=device) < counts[:, None])
        self.sums.scatter_add_(1, column, exempt.neg_())


def _int_for(largest: int) -> torch.dtype:
    """The narrowest integer type that holds `largest`: the search reads it once per pair."""
    return torch.int8 if largest < 2**7 else torch.int16 if largest < 2**15 else torch.int32

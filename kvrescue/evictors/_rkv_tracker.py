"""R-KV after every token in O(n * dim) per head: one product of the keys with what is new.

Remembered per entry: 1 / (|k| + 1e-8), its last match r and S[i, r] (see `_redundancy`), and the
largest logit of the query group for each of the last `observation` queries. Remembered per head:
the sum of the unit keys. A step multiplies the keys with that sum, the new keys and the new
queries; everything else is O(n).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvrescue.evictors import tensors as ops
from kvrescue.evictors._redundancy import EPSILON, last_above, last_matches, pending_rows
from kvrescue.evictors.tracking import ScoreTracker, StateField, TrackedCache

if TYPE_CHECKING:
    from kvrescue.evictors.rkv import RKV

__all__ = ["RKVTracker"]

_NONE = -1  # no entry matches: the oldest one is exempted
_OPEN = -2  # the match has left: search again


class RKVTracker(ScoreTracker):
    """Tracks `RKV`; needs window >= observation, so that no causal mask applies."""

    def __init__(self, evictor: RKV) -> None:
        self.window = evictor.window
        self.observation = evictor.observation
        self.kernel_size = evictor.kernel_size
        self.lam = evictor.lam
        self.threshold = evictor.similarity_threshold

    def entry_state(self, head_dim: int) -> dict[str, StateField]:
        fields = {
            "inverse": StateField((), torch.float32),
            "seen": StateField((self.observation,), torch.float32),
        }
        if self.threshold is not None:
            fields["match"] = StateField((), torch.int64)
            fields["similarity"] = StateField((), torch.float32)
        return fields

    def head_state(self, head_dim: int) -> dict[str, StateField]:
        return {"total": StateField((head_dim,), torch.float32)}

    def start(self, cache: TrackedCache) -> None:
        state, keys = cache.state, cache.keys.flatten(0, 1)
        length = keys.shape[1]
        inverse = _inverse(keys)
        unit = keys * inverse.unsqueeze(2)
        lead = cache.keys.shape[:2]
        state["inverse"][:] = inverse.view(*lead, length)
        state["total"][:] = unit.sum(1).view(*lead, -1)
        if self.threshold is not None:
            matches = last_matches(unit, self.threshold)
            state["match"][:] = matches.entry.view(*lead, length)
            state["similarity"][:] = matches.similarity.view(*lead, length)
        queries = _of_pairs(cache)
        logits = torch.bmm(queries.flatten(1, 2), keys.mT).view(*queries.shape[:3], length)
        self._observe(cache, logits)

    def score(self, cache: TrackedCache) -> Tensor:
        keys, order = cache.keys.flatten(0, 1), cache.order.flatten(0, 1)
        pairs, length, _ = keys.shape
        new, past = cache.new, length - self.window
        fresh = keys[:, length - new :]
        state = {name: value.flatten(0, 1) for name, value in cache.state.items()}
        inverse = state["inverse"]
        inverse[:, length - new :] = _inverse(fresh)
        fresh = fresh * inverse[:, length - new :, None]
        state["total"] += fresh.sum(1)

        queries = _of_pairs(cache)
        group, observed = queries.shape[1:3]
        left = torch.cat((state["total"].unsqueeze(1), fresh, queries.flatten(1, 2)), dim=1)
        products = torch.bmm(left, keys.mT)  # the one pass over the keys
        cosines = products[:, : 1 + new].mul_(inverse.unsqueeze(1))
        sums = cosines[:, 0] - (1.0 - EPSILON * inverse).square_()  # |u| = 1 - 1e-8 / (|k| + 1e-8)
        if self.threshold is not None:
            _match(state, cosines[:, 1:], keys, order, self.threshold)
            oldest = order[:, :1]
            exempted = torch.where(state["match"] < 0, oldest, state["match"])
            sums.scatter_add_(1, exempted, -state["similarity"])
        again = torch.softmax(sums.div_(length), dim=-1)
        self._observe(cache, products[:, 1 + new :].view(pairs, group, observed, length))

        scored = order[:, :past]
        seen = ops.rows_at(state["seen"], scored).mT.contiguous()
        seen = ops.pool(torch.softmax(seen, dim=-1).mean(1), self.kernel_size, "max")
        out = keys.new_zeros(pairs, length)
        out[:, :past] = seen.mul_(self.lam).sub_(again.gather(1, scored), alpha=1.0 - self.lam)
        return out.view(cache.order.shape)

    def drop(self, cache: TrackedCache, slots: Tensor, renamed: Tensor) -> None:
        state, dim = cache.state, cache.keys.shape[3]
        gone = cache.keys.gather(2, slots.unsqueeze(3).expand(-1, -1, -1, dim))
        units = gone.mul_(state["inverse"].gather(2, slots).unsqueeze(3))
        state["total"] -= units.sum(2)
        if self.threshold is not None:
            match = state["match"]
            moved = renamed.gather(2, match.clamp(min=0))
            # Those without a match exempt the oldest entry: compare anew when that has left.
            oldest = renamed.gather(2, cache.order[:, :, :1])
            alone = torch.where(oldest < 0, _OPEN, _NONE)
            moved = torch.where(moved < 0, _OPEN, moved)
            match[:] = torch.where(match < 0, torch.where(match == _OPEN, _OPEN, alone), moved)

    def _observe(self, cache: TrackedCache, logits: Tensor) -> None:
        """Remember logits [pairs, group, observed, n] of the newest queries.

        `seen` is a ring over the queries; their mean does not ask which one is the oldest.
        """
        seen = cache.state["seen"]
        rows, heads, length, ring = seen.shape
        observed, dim = logits.shape[2], cache.keys.shape[3]
        largest = logits.amax(1).mul_(1.0 / math.sqrt(dim)).view(rows, heads, observed, length)
        places = cache.logical[:, None] - observed + torch.arange(observed, device=seen.device)
        index = (places % ring)[:, None, None, :].expand(-1, heads, length, -1)
        seen.scatter_(3, index, largest.mT)


def _match(
    state: dict[str, Tensor], block: Tensor, keys: Tensor, order: Tensor, threshold: float
) -> None:
    """Update the last matches; block [pairs, new, n] = S of the new entries with all."""
    match, similarity = state["match"], state["similarity"]
    new, length = block.shape[1:]
    start = length - new
    block[:, :, start:].diagonal(dim1=1, dim2=2).zero_()
    over = block > threshold
    match[:, start:] = _OPEN
    for i in range(new):  # oldest first: the last match stays
        match.masked_fill_(over[:, i], start + i)
        similarity.copy_(torch.where(over[:, i], block[:, i], similarity))
    # A new entry without a newer match looks back among all.
    back = block.gather(2, order.unsqueeze(1).expand(-1, new, -1))
    rank, value = last_above(back, threshold)
    found = torch.where(rank < 0, _NONE, order.gather(1, rank.clamp(min=0)))
    still = match[:, start:] == _OPEN
    match[:, start:] = torch.where(still, found, match[:, start:])
    similarity[:, start:] = torch.where(still, value, similarity[:, start:])
    pending = match == _OPEN
    if heads := pending.any(1).nonzero().squeeze(1).tolist():
        index = torch.tensor(heads, device=keys.device)
        _search(state, keys, order, pending, index, threshold)


def _search(
    state: dict[str, Tensor],
    keys: Tensor,
    order: Tensor,
    pending: Tensor,
    heads: Tensor,
    threshold: float,
) -> None:
    """Entries whose match has left: compare them with all entries of their head."""
    counts = pending[heads].sum(1)
    most = int(counts.max())
    rows = pending_rows(pending[heads], most)
    inverse, order, keys = state["inverse"][heads], order[heads], keys[heads]
    unit = keys * inverse.unsqueeze(2)
    similar = torch.bmm(ops.rows_at(unit, rows), unit.mT)
    similar.scatter_(2, rows.unsqueeze(2), 0.0)
    similar = similar.gather(2, order.unsqueeze(1).expand(-1, most, -1))
    rank, value = last_above(similar, threshold)
    found = torch.where(rank < 0, _NONE, order.gather(1, rank.clamp(min=0)))
    real = torch.arange(most, device=keys.device) < counts[:, None]
    pair, column = heads[:, None].expand_as(rows)[real], rows[real]
    state["match"][pair, column] = found[real]
    state["similarity"][pair, column] = value[real]


def _inverse(keys: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(keys, dim=-1)
    return norms.add_(EPSILON).reciprocal_()


def _of_pairs(cache: TrackedCache) -> Tensor:
    """The queries as [pairs, group, observed, dim]."""
    rows, q_heads, observed, dim = cache.queries.shape
    heads = cache.keys.shape[1]
    return cache.queries.reshape(rows * heads, q_heads // heads, observed, dim)

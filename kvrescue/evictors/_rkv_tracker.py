"""R-KV after every token in O(n * dim) per head: one product of the keys with what is new.

Remembered per entry: 1 / (|k| + 1e-8), its last match r and S[i, r] (see `_redundancy`), and the
largest logit of the query group for each of the last `observation` queries. Remembered per head:
the sum of the unit keys. A step multiplies the keys with that sum, the new keys and the new
queries; everything else is O(n).

On a CPU with numba, `kvrescue.kernels.tracked` does the same in one pass per head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvrescue import kernels
from kvrescue.evictors import tensors as ops
from kvrescue.evictors._observed import SEEN, observe, observed_importance
from kvrescue.evictors._redundancy import EPSILON, last_above, last_matches, pending_rows
from kvrescue.evictors.tracking import ScoreTracker, StateField, TrackedCache, renamed
from kvrescue.kernels.states import NONE, OPEN, STALE

if TYPE_CHECKING:
    from kvrescue.evictors.rkv import RKV

__all__ = ["RKVTracker"]

_RECENT = 8  # so many entries before a new one hold its last match nearly always


class RKVTracker(ScoreTracker):
    """Tracks `RKV`; needs window >= observation, so that no causal mask applies."""

    def __init__(self, evictor: RKV) -> None:
        self.window = evictor.window
        self.observation = evictor.observation
        self.kernel_size = evictor.kernel_size
        self.lam = evictor.lam
        self.threshold = evictor.similarity_threshold

    def compiled(self, device: torch.device) -> bool:
        return kernels.compiled(device)

    def entry_state(self, head_dim: int) -> dict[str, StateField]:
        fields = {
            "inverse": StateField((), torch.float32),
            SEEN: StateField((self.observation,), torch.float32),
        }
        if self.threshold is not None:
            fields["match"] = StateField((), torch.int32)
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
        queries = cache.query_pairs()
        observe(cache, torch.bmm(keys, queries.flatten(1, 2).mT), self.window)

    def score(self, cache: TrackedCache) -> Tensor:
        if self.compiled(cache.keys.device):
            from kvrescue.kernels import tracked

            return tracked.score_rkv(
                cache.keys,
                cache.queries,
                cache.order,
                cache.logical,
                cache.state,
                new=cache.new,
                window=self.window,
                kernel_size=self.kernel_size,
                lam=self.lam,
                threshold=self.threshold,
            )
        keys, order = cache.keys.flatten(0, 1), cache.order.flatten(0, 1)
        pairs, length, _ = keys.shape
        new, past = cache.new, length - self.window
        fresh = keys[:, length - new :]
        state = {name: value.flatten(0, 1) for name, value in cache.state.items()}
        inverse = state["inverse"]
        inverse[:, length - new :] = _inverse(fresh)
        fresh = fresh * inverse[:, length - new :, None]
        state["total"] += fresh.sum(1)

        queries = cache.query_pairs()
        right = torch.cat((state["total"].unsqueeze(1), fresh, queries.flatten(1, 2)), dim=1)
        products = torch.bmm(keys, right.mT)  # the one pass over the keys; faster with them first
        # Less |u|^2 = (1 - x)^2 with x = 1e-8 / (|k| + 1e-8); its 1 is all the same to a softmax.
        tiny = inverse * EPSILON
        sums = torch.addcmul(products[:, :, 0] * inverse, tiny, 2.0 - tiny)
        if self.threshold is not None:
            cosines = torch.mul(products[:, :, 1 : 1 + new].mT, inverse.unsqueeze(1))
            _match(state, cosines.contiguous(), keys, order, self.threshold)
            match = state["match"]
            exempted = torch.where(match < 0, order[:, :1], match)
            sums.scatter_add_(1, exempted, -state["similarity"])
        again = torch.softmax(sums.div_(length), dim=-1)
        observe(cache, products, self.window)

        scored = order[:, :past]
        seen = ops.pool(observed_importance(state[SEEN], scored), self.kernel_size, "max")
        out = keys.new_zeros(pairs, length)
        out[:, :past] = seen.mul_(self.lam).sub_(again.gather(1, scored), alpha=1.0 - self.lam)
        return out.view(cache.order.shape)

    def drop(self, cache: TrackedCache, slots: Tensor, sources: Tensor) -> None:
        if self.compiled(cache.keys.device):
            from kvrescue.kernels import tracked

            tracked.drop(cache.keys, cache.order, cache.state, slots, sources)
            return
        state, dim = cache.state, cache.keys.shape[3]
        gone = ops.rows_at(cache.keys.flatten(0, 1), slots.flatten(0, 1)).view(*slots.shape, dim)
        state["total"] -= gone.mul_(state["inverse"].gather(2, slots).unsqueeze(3)).sum(2)
        if self.threshold is None:
            return
        match = state["match"]
        # Those without a match exempt the oldest entry, and never get an older match.
        oldest = (slots == cache.order[:, :, :1]).any(2, keepdim=True)
        if bool(oldest.any()):
            match.masked_fill_(oldest & (match == NONE), STALE)
        if slots.shape[2] == 1:
            slots, sources = slots.to(match.dtype), sources.to(match.dtype)
            opened = match == slots
            match.add_((match == sources) * (slots - sources))
        else:
            names = renamed(match.shape[2], slots, sources).to(match.dtype)
            moved = names.gather(2, match.clamp(min=0).to(torch.int64))
            opened = (moved < 0) & (match >= 0)
            match.copy_(torch.where(match < 0, match, moved))
        if bool(opened.any()):
            match.masked_fill_(opened, OPEN)


def _match(
    state: dict[str, Tensor], block: Tensor, keys: Tensor, order: Tensor, threshold: float
) -> None:
    """Update the last matches; block [pairs, new, n] = S of the new entries with all."""
    match, similarity = state["match"], state["similarity"]
    new, length = block.shape[1:]
    start = length - new
    block[:, :, start:].diagonal(dim1=1, dim2=2).zero_()
    match[:, start:] = OPEN
    for i in range(new):  # oldest first: the last match stays
        # Arithmetic with ones and zeros, which is exact and, on a CPU, faster than a choice.
        over = (block[:, i] > threshold).to(torch.float32)
        rest = 1.0 - over
        match.mul_(rest.to(match.dtype)).add_(over.to(match.dtype), alpha=start + i)
        similarity.mul_(rest).add_(over.mul_(block[:, i]))
    # A new entry without a newer match looks back, at first among the newest.
    newest = order[:, max(0, start - _RECENT) :]
    found, value = _look_back(block, newest, threshold)
    still = match[:, start:] == OPEN
    lonely = still & (found < 0)
    if bool(lonely.any()):
        index = lonely.any(1).nonzero().squeeze(1)
        found[index], value[index] = _look_back(block[index], order[index], threshold)
    match[:, start:] = torch.where(still, found.to(match.dtype), match[:, start:])
    similarity[:, start:] = torch.where(still, value, similarity[:, start:])
    stale = match == STALE
    if bool(stale.any()):
        heads = stale.any(1).nonzero().squeeze(1)
        _compare_with_oldest(state, keys, order, stale, heads)
    pending = match == OPEN
    if bool(pending.any()):
        heads = pending.any(1).nonzero().squeeze(1)
        _search(state, keys, order, pending, heads, threshold)


def _look_back(block: Tensor, order: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Of S's rows [pairs, m, n], the last match among the entries of `order` [pairs, k], NONE
    without one, and the similarity to it (without one: to the first of `order`)."""
    back = block.gather(2, order.unsqueeze(1).expand(-1, block.shape[1], -1))
    rank, value = last_above(back, threshold)
    return torch.where(rank < 0, NONE, order.gather(1, rank.clamp(min=0))), value


def _compare_with_oldest(
    state: dict[str, Tensor], keys: Tensor, order: Tensor, stale: Tensor, heads: Tensor
) -> None:
    """Entries without a match whose oldest entry has left exempt the one that is oldest now."""
    inverse, oldest = state["inverse"][heads], order[heads, :1]
    unit = ops.rows_at(keys[heads], oldest).mul_(inverse.gather(1, oldest).unsqueeze(2))
    similar = torch.bmm(keys[heads], unit.mT).squeeze(2).mul_(inverse)
    similar.scatter_(1, oldest, 0.0)
    match, similarity, stale = state["match"], state["similarity"], stale[heads]
    similarity[heads] = torch.where(stale, similar, similarity[heads])
    match[heads] = match[heads].masked_fill(stale, NONE)


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
    asked = ops.rows_at(keys, rows).mul_(inverse.gather(1, rows).unsqueeze(2))
    similar = torch.bmm(asked, keys.mT).mul_(inverse.unsqueeze(1))
    similar.scatter_(2, rows.unsqueeze(2), 0.0)
    found, value = _look_back(similar, order, threshold)
    real = torch.arange(most, device=keys.device) < counts[:, None]
    pair, column = heads[:, None].expand_as(rows)[real], rows[real]
    state["match"][pair, column] = found[real].to(state["match"].dtype)
    state["similarity"][pair, column] = value[real]


def _inverse(keys: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(keys, dim=-1)
    return norms.add_(EPSILON).reciprocal_()

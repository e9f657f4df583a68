"""Sampling and entropy from raw logits, reproducible per candidate.

Every candidate owns a counter-based generator (Philox) keyed by its seed alone, and uses one
uniform number per position, so which rows are batched together does not change what is sampled
(up to the floating-point effects of batching on the logits themselves).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvrescue import kernels
from kvrescue.sampling import Sampling

__all__ = ["TokenStatistics", "entropy", "sample", "token_statistics", "uniforms"]

_PIECE_BYTES = 3 << 19


def uniforms(seed: int, count: int) -> np.ndarray:
    """[count] float64 in [0, 1): the candidate's uniform number for each of its positions."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Of the next-token distributions softmax(logits) over the whole vocabulary, each [rows]."""

    largest: Tensor
    """The largest logit."""
    normaliser: Tensor
    """ln Z: the logarithm of the sum of the logits' exponentials."""
    entropy: Tensor
    """In nats (paper, eq. 4); NaN where a row holds NaN or an infinity, which callers treat as an
    error."""


def token_statistics(logits: Tensor) -> TokenStatistics:
    """`logits` [rows, vocab], before temperature and truncation; the statistics are float32."""
    if kernels.available(logits.device):
        from kvrescue.kernels.vocabulary import statistics

        return TokenStatistics(
            *statistics(logits if logits.stride(1) == 1 else logits.contiguous())
        )
    logits = logits.float()
    pieces = logits.split(_rows_at_once(logits)) if logits.device.type == "cpu" else (logits,)
    found = [_statistics(piece) for piece in pieces]
    return TokenStatistics(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def entropy(logits: Tensor) -> Tensor:
    """The entropies of `token_statistics`, [rows]."""
    return token_statistics(logits).entropy


def _statistics(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    largest = logits.amax(dim=-1)
    shifted = logits - largest.unsqueeze(-1)
    weights = shifted.exp()
    total = weights.sum(dim=-1)
    spread = total.log()
    # H = ln Z - E[x]; a -inf logit gives 0 * -inf = NaN and is reported rather than hidden.
    mean: Tensor = torch.linalg.vecdot(weights, shifted) / total
    return largest, largest + spread, spread - mean


def _rows_at_once(logits: Tensor) -> int:
    """So many rows stay in a core's cache over the passes that the entropy takes."""
    return max(1, _PIECE_BYTES // max(1, logits.shape[-1] * logits.element_size()))


def sample(
    logits: Tensor, sampling: Sampling, uniform: Tensor, largest: Tensor | None = None
) -> Tensor:
    """Next token per row.

    `logits` [rows, vocab] float32, `uniform` [rows] in [0, 1), `largest` [rows] the maximum of each
    row if it is known (`token_statistics`). Temperature, then top-k, then
    top-p (the smallest set of most likely tokens whose mass reaches p), then the inverse CDF over
    tokens from most to least likely. Returns [rows] int64.
    """
    if sampling.temperature == 0.0:
        return logits.argmax(dim=-1)
    vocab = logits.shape[-1]
    # The largest logit becomes 0 first, so that no temperature, however low, overflows.
    temperature = max(sampling.temperature, torch.finfo(torch.float32).tiny)
    largest = logits.amax(dim=-1) if largest is None else largest

    def scaled(values: Tensor) -> Tensor:
        return (values - largest.unsqueeze(-1)) / temperature

    # What is ordered is logits: scaled, some that differ are the same float32.
    if sampling.top_k == 0 and sampling.top_p == 1.0:
        order, mass = None, torch.softmax(scaled(logits), dim=-1).double()
    elif 0 < sampling.top_k < vocab:
        values, order = logits.topk(sampling.top_k, dim=-1)
        mass = torch.softmax(scaled(values).double(), dim=-1)
    else:
        values, order = logits.sort(dim=-1, descending=True, stable=True)
        mass = torch.softmax(scaled(values).double(), dim=-1)
    if sampling.top_p < 1.0:
        enough = mass.cumsum(dim=-1) >= sampling.top_p
        mass[:, 1:].masked_fill_(enough[:, :-1], 0.0)
    cumulative = mass.cumsum(dim=-1)
    total = cumulative[:, -1]
    # Below the total even where the product rounds up to it, so no token without mass is drawn.
    target = torch.minimum(
        uniform.to(total) * total, torch.nextafter(total, torch.zeros_like(total))
    )
    choice = torch.searchsorted(cumulative, target[:, None], right=True)
    choice = choice.clamp(max=mass.shape[-1] - 1)
    return (choice if order is None else order.gather(-1, choice))[:, 0]

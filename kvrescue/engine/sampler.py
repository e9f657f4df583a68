"""Sampling and entropy from raw logits, reproducible per candidate.

Every candidate owns a counter-based generator (Philox) keyed by its seed alone, and uses one
uniform number per position, so which rows are batched together does not change what is sampled
(up to the floating-point effects of batching on the logits themselves).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvrescue.sampling import Sampling

__all__ = ["entropy", "sample", "uniforms"]

_PIECE_BYTES = 3 << 19


def uniforms(seed: int, count: int) -> np.ndarray:
    """[count] float64 in [0, 1): the candidate's uniform number for each of its positions."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(logits) over the whole vocabulary (paper, eq. 4).

    `logits` [rows, vocab] float32, before temperature and truncation. Returns [rows]; NaN where a
    row holds NaN or an infinity, which callers treat as an error.
    """
    pieces = logits.split(_rows_at_once(logits)) if logits.device.type == "cpu" else (logits,)
    return torch.cat([_entropy(piece) for piece in pieces])


def _entropy(logits: Tensor) -> Tensor:
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    total = weights.sum(dim=-1)
    # H = ln Z - E[x]; a -inf logit gives 0 * -inf = NaN and is reported rather than hidden.
    mean: Tensor = torch.linalg.vecdot(weights, shifted) / total
    return total.log() - mean


def _rows_at_once(logits: Tensor) -> int:
    """So many rows stay in a core's cache over the passes that the entropy takes."""
    return max(1, _PIECE_BYTES // max(1, logits.shape[-1] * logits.element_size()))


def sample(logits: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """Next token per row.

    `logits` [rows, vocab] float32, `uniform` [rows] in [0, 1). Temperature, then top-k, then
    top-p (the smallest set of most likely tokens whose mass reaches p), then the inverse CDF over
    tokens from most to least likely. Returns [rows] int64.
    """
    if sampling.temperature == 0.0:
        return logits.argmax(dim=-1)
    vocab = logits.shape[-1]
    # The largest logit becomes 0 first, so that no temperature, however low, overflows.
    temperature = max(sampling.temperature, torch.finfo(torch.float32).tiny)
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if sampling.top_k == 0 and sampling.top_p == 1.0:
        order, mass = None, torch.softmax(scaled, dim=-1).double()
    elif 0 < sampling.top_k < vocab:
        values, order = scaled.topk(sampling.top_k, dim=-1)
        mass = torch.softmax(values.double(), dim=-1)
    else:
        values, order = scaled.sort(dim=-1, descending=True, stable=True)
        mass = torch.softmax(values.double(), dim=-1)
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

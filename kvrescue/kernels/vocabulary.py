"""Statistics of next-token distributions, in one pass over the vocabulary.

A row is cut into parts of fixed length, so that its statistics do not depend on how many rows
there are. Of each part, the maximum m of the logits x and the sums of exp(x - m) and
exp(x - m) (x - m) are carried along; when a larger m turns up, the sums are rescaled by what that
changes. A second kernel puts the parts together.

Drawing the token is not part of it. `engine.sampler.sample` inverts a distribution function that is
added up in float64 in the order of the tokens; another order of addition would draw another token
for some seeds. The maximum is exact in any order, so the sampler takes it from here.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kvrescue.kernels import _vocabulary as device
from kvrescue.kernels._launch import on_its_device

__all__ = ["statistics"]

SPAN = 16384
"""Logits of a part, which one program reads."""
BLOCK = 2048
"""Of them at once."""


@on_its_device
def statistics(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per row the maximum, the logarithm of the sum of exponentials, and the entropy in nats.

    Args:
        logits: [rows, vocab] of a floating dtype; the last axis is contiguous.

    Returns:
        Three float32 [rows]. The entropy is NaN where a row holds NaN or an infinity.
    """
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, SPAN)
    partial = torch.empty((3, rows, parts), dtype=torch.float32, device=logits.device)
    out = torch.empty((3, rows), dtype=torch.float32, device=logits.device)
    if rows:
        device.statistics_kernel[rows, parts](
            logits,
            *partial.unbind(0),
            vocab,
            parts,
            logits.stride(0),
            span=SPAN,
            block=min(BLOCK, triton.next_power_of_2(vocab)),
            num_warps=8,
        )
        block = triton.next_power_of_2(parts)
        device.combine_kernel[(rows,)](
            *partial.unbind(0), *out.unbind(0), parts, block=block, num_warps=1
        )
    largest, normaliser, entropy = out.unbind(0)
    return largest, normaliser, entropy

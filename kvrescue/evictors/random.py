"""Random eviction: the control every selector has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kvrescue.evictors.base import Evictor, KVSlice

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RandomEviction"]

_CHANNELS = 8
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class RandomEviction(Evictor):
    """Uniform scores from a hash: reproducible, and independent of batching and call order.

    The hash mixes `seed`, the logical position (the physical index when the slice carries none),
    the KV head and the signs of the entry's first 8 key channels. The signs make layers and
    sequences draw differently (a row does not know which layer it is). With positions an entry
    keeps its score for life, so that a fork of a sequence evicts as its parent would.
    """

    kind: ClassVar[str] = "random"

    seed: int = 0
    """Another one drops other entries."""

    def score(self, kv: KVSlice) -> Tensor:
        """Multiples of 2**-24 in [0, 1), float32 [rows, kv_heads, length]."""
        import torch

        heads, length, dim = kv.keys.shape[1:]
        device = kv.keys.device
        position = torch.arange(length, device=device) if kv.positions is None else kv.positions
        positive = kv.keys[..., :_CHANNELS] > 0
        if dim < _CHANNELS:
            positive = torch.nn.functional.pad(positive, (0, _CHANNELS - dim))
        # Eight booleans are eight bytes 0 or 1: one integer per entry.
        word = positive.contiguous().view(torch.int64).squeeze(-1)
        stream = _hash(torch.arange(heads, device=device) + _signed(_MIX[0] * (self.seed + 1)))
        word = word * _signed(_MIX[1]) + position.to(torch.int64) * _signed(_MIX[0])
        return (_hash(word + stream[:, None]) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _signed(value: int) -> int:
    """`value` modulo 2**64 as a signed 64-bit integer."""
    return (value + 2**63) % 2**64 - 2**63


def _hash(value: Tensor) -> Tensor:
    """A bijective scramble of 64-bit integers (multiply and xor-shift, wrapping)."""
    for shift, factor in ((30, _MIX[1]), (27, _MIX[2])):
        # torch shifts arithmetically; the mask makes it logical.
        value = (value ^ ((value >> shift) & (2 ** (64 - shift) - 1))) * _signed(factor)
    return value ^ ((value >> 31) & (2**33 - 1))

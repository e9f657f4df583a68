"""Start-up self-tests: the cache is laid out as we think, and every layer can be hooked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvrescue.errors import ConfigError
from kvrescue.policies.vllm.attention import LAYOUTS, Layout

__all__ = ["find_layout"]


@torch.inference_mode()
def find_layout(
    layers: Sequence[Any], num_blocks: int, layouts: Sequence[Layout] = LAYOUTS
) -> Layout:
    """The layout by which what vLLM writes can be read back and rewritten, in every layer.

    Known keys and values go through the backend's own cache-write operation into two blocks that
    nobody uses yet; they are zeroed afterwards. Raises ConfigError when no layout fits.
    """
    for layer in layers:
        _check_shape(layer, num_blocks)
    for layout in layouts:
        if all(_fits(layer, layout) for layer in layers):
            return layout
    impl = type(layers[0].impl).__name__
    known = ", ".join(layout.name for layout in layouts)
    raise ConfigError(
        f"the KV cache of attention backend {impl} ({layers[0].kv_cache.dtype}, shape "
        f"{list(layers[0].kv_cache.shape)}) is laid out in a way kvrescue does not know (it knows: "
        f"{known}); use float32 on the CPU or the default attention backend"
    )


def _check_shape(layer: Any, num_blocks: int) -> None:
    cache, impl = layer.kv_cache, type(layer.impl).__name__
    wrong = "has no tensor of its own"
    if isinstance(cache, Tensor):
        if cache.dim() == 4 and cache.shape[0] == num_blocks:
            if hasattr(layer.impl, "do_kv_cache_update"):
                return
            wrong = "is written inside the attention kernel, which cannot be tested alone"
        else:
            wrong = f"has shape {list(cache.shape)} for {num_blocks} blocks"
    raise ConfigError(
        f"the KV cache of attention backend {impl} {wrong}; use another block_size (16 or 32) or "
        "the default attention backend"
    )


def _fits(layer: Any, layout: Layout) -> bool:
    cache: Tensor = layer.kv_cache
    _, heads, size, width = cache.shape
    blocks = torch.tensor([[2, 1]], device=cache.device)  # out of order on purpose
    count = size + size // 2 + 1
    generator = torch.Generator().manual_seed(0)
    shape = (count, heads, width // 2)
    written = [torch.randn(shape, generator=generator).to(cache) for _ in range(2)]
    places = torch.arange(count, device=cache.device)
    slots = blocks[0, places // size] * size + places % size
    try:
        layer.impl.do_kv_cache_update(layer, *written, cache, slots)
        found = _read(layout, cache, blocks)
        if not _equal(found, written, count):
            return False
        block, head = blocks[0, places // size], torch.arange(heads, device=cache.device)
        entries = [
            e.flatten()
            for e in torch.broadcast_tensors(block[:, None], head, (places % size)[:, None])
        ]
        reverse = [e.view(count, heads).flip(0).flatten() for e in entries]
        layout.move(cache, tuple(entries), tuple(reverse))
        again = _read(layout, cache, blocks)
        return _equal(again, [w.flip(0) for w in written], count)
    finally:
        cache.index_fill_(0, blocks[0], 0)


def _read(layout: Layout, cache: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    return layout.keys(cache, blocks), layout.values(cache, blocks)


def _equal(found: Sequence[Tensor], written: Sequence[Tensor], count: int) -> bool:
    return all(
        torch.equal(f[0, :, :count], w.transpose(0, 1)) for f, w in zip(found, written, strict=True)
    )

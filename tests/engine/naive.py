"""A model's evicted decoding, written the slow and obvious way: the reference of the engine tests.

One sequence at a time; every layer and KV head keeps Python lists of key and value vectors.
The only thing shared with the engine is the evictor itself, asked about one layer at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from kvrescue.evictors.base import Evictor, KVSlice

NEWLINE = 2  # of the vocabulary of `tests.engine.models`: two of them are a separator


class NaiveCache:
    """keys[layer][head] is a list of [head_dim] vectors in temporal order."""

    def __init__(self, layers: int, heads: int) -> None:
        self.keys: list[list[list[Tensor]]] = [[[] for _ in range(heads)] for _ in range(layers)]
        self.values: list[list[list[Tensor]]] = [[[] for _ in range(heads)] for _ in range(layers)]
        self.positions: list[list[list[int]]] = [[[] for _ in range(heads)] for _ in range(layers)]
        self.queries: list[list[Tensor]] = [[] for _ in range(layers)]
        self.logical = 0

    def copy(self) -> NaiveCache:
        twin = NaiveCache(len(self.keys), len(self.keys[0]))
        twin.keys = [[list(h) for h in layer] for layer in self.keys]
        twin.values = [[list(h) for h in layer] for layer in self.values]
        twin.positions = [[list(h) for h in layer] for layer in self.positions]
        twin.queries = [list(q) for q in self.queries]
        twin.logical = self.logical
        return twin

    def length(self) -> int:
        lengths = {len(h) for layer in self.keys for h in layer}
        assert len(lengths) == 1
        return lengths.pop()

    def evict(self, evictor: Evictor, prefix: int = 0) -> None:
        if self.length() < evictor.bound + prefix + evictor.interval:
            return
        for layer in range(len(self.keys)):
            recent = self.queries[layer][-evictor.observation :]
            kept = evictor.select(
                KVSlice(
                    keys=torch.stack([torch.stack(h) for h in self.keys[layer]])[None],
                    values=torch.stack([torch.stack(h) for h in self.values[layer]])[None],
                    queries=torch.stack(recent, dim=1)[None],
                    positions=torch.tensor(self.positions[layer], dtype=torch.int32)[None],
                    prefix=torch.tensor([prefix]) if prefix else None,
                )
            )[0]
            for head, index in enumerate(kept.tolist()):
                for store in (self.keys, self.values, self.positions):
                    store[layer][head] = [store[layer][head][i] for i in index]  # type: ignore[index]


def naive_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float,
    naive: NaiveCache,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    layer = module.layer_idx
    _, q_heads, width, _ = query.shape
    kv_heads = key.shape[1]
    group = q_heads // kv_heads
    out = torch.zeros(1, width, q_heads, query.shape[-1])
    for t in range(width):
        naive.queries[layer].append(query[0, :, t])
        for h in range(kv_heads):
            naive.keys[layer][h].append(key[0, h, t])
            naive.values[layer][h].append(value[0, h, t])
            naive.positions[layer][h].append(naive.logical + t)
            k, v = torch.stack(naive.keys[layer][h]), torch.stack(naive.values[layer][h])
            for a in range(h * group, (h + 1) * group):
                weights = (k @ query[0, a, t] * scaling).softmax(dim=0)
                out[0, t, a] = weights @ v
    return out, None


AttentionInterface.register("naive_test", naive_attention)


class NaiveModel:
    """Runs a model token by token or chunk by chunk over a NaiveCache."""

    def __init__(self, model: PreTrainedModel, evictor: Evictor | None) -> None:
        model.set_attn_implementation("naive_test")
        self.model, self.evictor = model, evictor
        c = model.config
        self.layers, self.heads = c.num_hidden_layers, c.num_key_value_heads

    @torch.no_grad()
    def feed(self, cache: NaiveCache, tokens: list[int], prefix: int = 0) -> Tensor:
        """One forward pass over `tokens`, then eviction; returns the last logits [vocab]."""
        positions = torch.arange(cache.logical, cache.logical + len(tokens))[None]
        out = self.model.get_decoder()(
            input_ids=torch.tensor([tokens]), position_ids=positions, use_cache=False, naive=cache
        )
        cache.logical += len(tokens)
        if self.evictor is not None:
            cache.evict(self.evictor, prefix)
        return self.model.get_output_embeddings()(out.last_hidden_state[0, -1]).float()

    def open(self, tokens: list[int], prefix: int = 0) -> tuple[NaiveCache, Tensor]:
        cache = NaiveCache(self.layers, self.heads)
        return cache, self.feed(cache, tokens, prefix)

    def greedy(
        self, cache: NaiveCache, logits: Tensor, count: int, stop: set[int], prefix: int = 0
    ) -> tuple[list[int], Tensor]:
        """Decode up to `count` tokens; the last one is not fed. Two single newlines end it, too."""
        out: list[int] = []
        while len(out) < count:
            out.append(int(logits.argmax()))
            if out[-1] in stop or out[-2:] == [NEWLINE] * 2 or len(out) == count:
                break
            logits = self.feed(cache, [out[-1]], prefix)
        return out, logits

"""A small batched sampler for making training data: Qwen2 weights, a slot cache, eviction.

The library's engine does this and more, one trajectory at a time; here hundreds of rows advance
together from gold histories, which is all that PRM data needs. Eviction itself is the library's:
an `Evictor` decides what stays, after every token while decoding and after every committed step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen2Model

from kvrescue.evictors.base import Evictor, KVSlice


class Decoder:
    """The weights of a Qwen2 model, ready for a forward pass over cached rows."""

    def __init__(self, trunk: Qwen2Model, unembedding: Tensor | None = None) -> None:
        config = trunk.config
        self.trunk = trunk
        self.unembedding = unembedding
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = trunk.layers[0].self_attn.head_dim
        phases = torch.outer(torch.arange(1024.0), trunk.rotary_emb.inv_freq)
        phases = torch.cat([phases, phases], -1)
        self.cos, self.sin = phases.cos(), phases.sin()

    @classmethod
    def of(cls, model: Qwen2ForCausalLM) -> Decoder:
        """A decoder that can sample."""
        return cls(model.model, model.lm_head.weight.detach())

    def rotate(self, states: Tensor, positions: Tensor) -> Tensor:
        """RoPE of [rows, heads, tokens, head_dim] at positions [rows, tokens]."""
        first, second = states.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return states * self.cos[positions][:, None] + turned * self.sin[positions][:, None]


class Rows:
    """Many sequences with their caches; rows are independent of each other."""

    def __init__(self, decoder: Decoder, count: int, capacity: int, evictor: Evictor | None):
        shape = (count, decoder.kv_heads, capacity, decoder.head_dim)
        layers = len(decoder.trunk.layers)
        self._decoder = decoder
        self._evictor = evictor
        self._keys = [torch.zeros(shape) for _ in range(layers)]
        self._values = [torch.zeros(shape) for _ in range(layers)]
        observation = evictor.observation if evictor else 0
        query_shape = (count, decoder.heads, observation, decoder.head_dim)
        self._queries = [torch.zeros(query_shape) for _ in range(layers)]
        self.cached = torch.zeros(count, dtype=torch.long)
        self.position = torch.zeros(count, dtype=torch.long)
        self.last_hidden = torch.zeros(count, decoder.trunk.config.hidden_size)

    @classmethod
    def open(
        cls, decoder: Decoder, prompts: Sequence[list[int]], room: int, evictor: Evictor | None
    ) -> Rows:
        """Read prompts with full attention, then evict down to the bound."""
        longest = max(map(len, prompts))
        rows = cls(decoder, len(prompts), longest + room, evictor)
        rows.commit(prompts)
        if evictor is not None:
            rows._shrink(max(int(rows.cached.max()), evictor.bound) + min(room, 32))
        return rows

    def fork(self, parents: Tensor, room: int | None = None) -> Rows:
        """Copies of some rows; ``room`` limits how many more tokens they can take."""
        child = object.__new__(Rows)
        child._decoder, child._evictor = self._decoder, self._evictor
        capacity = self._keys[0].shape[2]
        if room is not None:
            capacity = min(capacity, int(self.cached[parents].max()) + room)
        child._keys = [keys[:, :, :capacity][parents] for keys in self._keys]
        child._values = [values[:, :, :capacity][parents] for values in self._values]
        child._queries = [queries[parents] for queries in self._queries]
        child.cached, child.position = self.cached[parents], self.position[parents]
        child.last_hidden = self.last_hidden[parents]
        return child

    @torch.no_grad()
    def commit(self, sequences: Sequence[list[int]]) -> Tensor:
        """Read whole sequences (possibly empty) in one pass, then evict.

        Returns the final hidden states [rows, tokens, width] of the padded sequences.
        """
        counts = torch.tensor([len(sequence) for sequence in sequences])
        tokens = torch.zeros(len(sequences), max(1, int(counts.max())), dtype=torch.long)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        return self.extend(tokens, counts)

    @torch.no_grad()
    def extend(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Append the first ``counts`` tokens of each row, then evict; see `commit`."""
        decoder, trunk = self._decoder, self._decoder.trunk
        steps = torch.arange(tokens.shape[1])
        capacity = self._keys[0].shape[2]
        slots = (self.cached[:, None] + steps).clamp(max=capacity - 1)
        positions = self.position[:, None] + steps
        used = min(capacity, int(self.cached.max()) + tokens.shape[1])
        visible = (torch.arange(used) <= slots[:, :, None])[:, None]
        hidden = trunk.embed_tokens(tokens)
        for number, layer in enumerate(trunk.layers):
            attention, states = layer.self_attn, layer.input_layernorm(hidden)
            query = decoder.rotate(self._split(attention.q_proj(states)), positions)
            key = decoder.rotate(self._split(attention.k_proj(states)), positions)
            value = self._split(attention.v_proj(states))
            # Rows with fewer tokens write beyond their end: invisible, and overwritten later.
            where = slots[:, None, :, None].expand_as(key)
            self._keys[number].scatter_(2, where, key)
            self._values[number].scatter_(2, where, value)
            self._observe(number, query, counts)
            mixed = F.scaled_dot_product_attention(
                query,
                self._keys[number][:, :, :used],
                self._values[number][:, :, :used],
                attn_mask=visible,
                enable_gqa=True,
            )
            hidden = hidden + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        hidden = trunk.norm(hidden)
        self.cached, self.position = self.cached + counts, self.position + counts
        last = hidden[torch.arange(len(counts)), (counts - 1).clamp(min=0)]
        self.last_hidden = torch.where((counts > 0)[:, None], last, self.last_hidden)
        if self._evictor is not None:
            self._evict(self._evictor)
        return hidden

    @torch.no_grad()
    def sample(
        self, stops: Sequence[int], limit: int, temperature: float, generator: torch.Generator
    ) -> list[list[int]]:
        """Draw one continuation per row, up to a stop token (kept) or the limit.

        The rows are used up: fork the ones that go on.
        """
        drawn: list[list[int]] = [[] for _ in range(len(self.cached))]
        active, owner = self, torch.arange(len(self.cached))
        stop_ids = torch.tensor(stops)
        for length in range(1, limit + 1):
            logits = F.linear(active.last_hidden, self._decoder.unembedding)
            chances = (logits / temperature).softmax(-1)
            tokens = torch.multinomial(chances, 1, generator=generator)[:, 0]
            for row, token in zip(owner.tolist(), tokens.tolist(), strict=True):
                drawn[row].append(token)
            going = ~torch.isin(tokens, stop_ids)
            if length == limit or not going.any():
                break
            if not going.all():
                active, owner, tokens = (
                    active.fork(going.nonzero()[:, 0]),
                    owner[going],
                    tokens[going],
                )
            active.extend(tokens[:, None], torch.ones_like(tokens))
        return drawn

    def _split(self, states: Tensor) -> Tensor:
        rows, tokens, _ = states.shape
        return states.view(rows, tokens, -1, self._decoder.head_dim).transpose(1, 2)

    def _observe(self, layer: int, query: Tensor, counts: Tensor) -> None:
        """Keep the last queries of each row for the evictor."""
        observation = self._queries[layer].shape[2]
        if observation == 0:
            return
        history = torch.cat([self._queries[layer], query], 2)
        at = counts[:, None] + torch.arange(observation)
        at = at[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])
        self._queries[layer] = history.gather(2, at)

    def _evict(self, evictor: Evictor) -> None:
        """Bring every row that is over the bound back to it."""
        over = self.cached >= evictor.bound + evictor.interval
        for length in self.cached[over].unique().tolist():
            rows = (self.cached == length).nonzero()[:, 0]
            everyone = len(rows) == len(self.cached)
            for keys, values, queries in zip(self._keys, self._values, self._queries, strict=True):
                old_keys = keys[:, :, :length] if everyone else keys[rows, :, :length]
                old_values = values[:, :, :length] if everyone else values[rows, :, :length]
                observed = queries if everyone else queries[rows]
                kept = evictor.select(KVSlice(keys=old_keys, queries=observed, values=old_values))
                kept = kept[..., None].expand(-1, -1, -1, keys.shape[3])
                keys[rows, :, : evictor.bound] = old_keys.gather(2, kept)
                values[rows, :, : evictor.bound] = old_values.gather(2, kept)
            self.cached[rows] = evictor.bound

    def _shrink(self, capacity: int) -> None:
        self._keys = [keys[:, :, :capacity].contiguous() for keys in self._keys]
        self._values = [values[:, :, :capacity].contiguous() for values in self._values]

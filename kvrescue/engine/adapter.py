"""The only module that runs models of `transformers`.

A model stays unpatched. Its attention is directed, through the public attention interface, to
`slot_attention`, which writes the new keys and values into a `SlotStore` and attends over the
store; position ids are logical. No cache object of transformers is involved, and no mask: rows
of unequal length are masked here, and forks that share a row in `kvrescue.engine.packs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from kvrescue.engine.packs import PackedBatch, grouped, ungrouped
from kvrescue.engine.slots import KVShape, SlotStore
from kvrescue.errors import ModelLoadError
from kvrescue.evictors.tracking import ScoreTracker

__all__ = ["ATTENTION", "ForwardBatch", "ModelAdapter", "eos_ids"]

ATTENTION = "kvrescue_slots"
"""Name under which the attention function is registered with transformers."""


@dataclass(slots=True)
class ForwardBatch:
    """One forward pass over the first rows of a store.

    Row i feeds `counts[i]` tokens, right-padded to `width`; pad tokens write behind the row's
    end, where nobody looks and the next token overwrites them.

    With `branches` the tokens of a row are several continuations of it side by side: a token
    sees the row and the earlier tokens of its own branch only, and its position counts within the
    branch. Such a row is of no further use than to read hidden states and to copy branches out.
    """

    store: SlotStore
    counts: np.ndarray
    width: int
    branches: np.ndarray | None = None
    """[rows, width] number of each token's branch, ascending in a row, -1 for padding."""
    mask: Tensor | None = field(init=False)
    stop: int = field(init=False)
    slots: Tensor = field(init=False)
    positions: Tensor = field(init=False)
    _ring: tuple[Tensor, Tensor, Tensor] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        store, device = self.store, self.store.shape.device
        rows, steps = len(self.counts), np.arange(self.width)
        length = store.length[:rows]
        slots = length[:, None] + steps
        self.stop = int(slots.max(initial=0)) + 1
        store.reserve(store.rows, self.stop)
        self.slots = torch.from_numpy(slots).to(device)
        depth = steps if self.branches is None else _depth(self.branches)
        logical = store.logical[:rows, None] + depth
        self.positions = torch.from_numpy(logical).to(device)
        if self.branches is not None:
            self.mask = self._branch_mask(length)
        elif self.width == 1 and (length == length[0]).all():
            self.mask = None  # every slot below `stop` is valid for every row
        else:
            self.mask = torch.arange(self.stop, device=device) <= self.slots[:, :, None]
        self._note("positions", self.positions)
        self._note("order", self.slots)
        self._note("mass", torch.zeros((), device=device))
        if "queries" in store.heads:
            self._ring = self._ring_index(store)

    def _note(self, name: str, value: Tensor) -> None:
        """Write a number [rows, width] for every new entry, if the store keeps such numbers."""
        target = self.store.entries.get(name)
        if target is None:
            return
        rows = len(self.counts)
        value = value.to(target.dtype).expand(rows, self.width)
        if self.mask is None:
            target[:rows, :, :, self.stop - 1] = value[:, None]
        else:
            index = self.slots[:, None, None, :].expand(rows, *target.shape[1:3], -1)
            target[:rows].scatter_(3, index, value[:, None, None, :].expand_as(index))

    def _branch_mask(self, length: np.ndarray) -> Tensor:
        """[rows, width, stop]: the row's entries, and the branch's own up to the token itself."""
        device = self.store.shape.device
        branch = torch.from_numpy(self.branches).to(device)
        own = (branch[:, :, None] == branch[:, None, :]).tril_()
        end = torch.from_numpy(length).to(device)
        mask = torch.arange(self.stop, device=device) < end[:, None, None]
        mask = mask.expand(-1, self.width, -1).contiguous()
        return mask.scatter_(2, self.slots[:, None, :].expand_as(own), own)

    def _ring_index(self, store: SlotStore) -> tuple[Tensor, Tensor, Tensor]:
        """(row, token, ring slot) of the queries that stay observable."""
        ring, rows = store.shape.observation, np.arange(len(self.counts))
        recent = self.counts[:, None] - ring + np.arange(ring)[None]
        row, column = np.nonzero(recent >= 0)
        token = recent[row, column]
        slot = (store.logical[rows][row] + token) % ring
        device = store.shape.device
        row_, token_, slot_ = (torch.from_numpy(x).to(device) for x in (row, token, slot))
        return row_, token_, slot_

    def record(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write the new entries of a layer; returns its keys and values up to `stop`."""
        store, rows = self.store, len(self.counts)
        keys, values = store.keys[:rows, layer], store.values[:rows, layer]
        if self.mask is None:
            slot = self.stop - 1
            keys[:, :, slot], values[:, :, slot] = key[:, :, 0], value[:, :, 0]
        else:
            index = self.slots[:, None, :, None].expand_as(key)
            keys.scatter_(2, index, key)
            values.scatter_(2, index, value)
        if self._ring is not None:
            row, token, slot_ = self._ring
            queries = store.heads["queries"][:, layer].transpose(1, 2)
            queries[row, slot_] = query.transpose(1, 2)[row, token]
        return keys[:, :, : self.stop], values[:, :, : self.stop]

    def advance(self) -> None:
        """The forward pass is complete: the fed tokens are part of the rows."""
        rows = len(self.counts)
        self.store.length[:rows] += self.counts
        self.store.logical[:rows] += self.counts


def _depth(branches: np.ndarray) -> np.ndarray:
    """Place of each token within its branch."""
    steps = np.arange(branches.shape[1])
    first = np.ones_like(branches, dtype=bool)
    first[:, 1:] = branches[:, 1:] != branches[:, :-1]
    starts = np.maximum.accumulate(np.where(first, steps, 0), axis=1)
    depth: np.ndarray = steps - starts
    return depth


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None,
    scaling: float | None = None,
    slots: ForwardBatch | PackedBatch | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of new tokens over a store; shapes [rows, heads, width, head_dim].

    Called by transformers in place of its own attention.
    """
    if slots is None:
        raise RuntimeError("slot_attention needs slots=ForwardBatch(...) in the forward call")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    rows, q_heads, width, dim = query.shape
    scale = scaling if scaling is not None else dim**-0.5
    if isinstance(slots, PackedBatch):
        slots.record(layer, key, value)
        return slots.attend(layer, query, scale), None
    keys, values = slots.record(layer, query, key, value)
    kv_heads = keys.shape[1]
    group = q_heads // kv_heads
    stacked = grouped(query, kv_heads)
    mask = slots.mask
    if mask is not None:
        mask = mask[:, None].repeat(1, 1, group, 1)
    mass = slots.store.entries.get("mass")
    if mass is None:
        out = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, scale=scale)
    else:
        logits = torch.matmul(stacked, keys.transpose(-1, -2)).float() * scale
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        weights = logits.softmax(dim=-1)
        out = torch.matmul(weights.to(values.dtype), values)
        seen = weights.view(rows, kv_heads, group, width, -1).mean(dim=2)
        counts = torch.from_numpy(slots.counts).to(seen.device)
        real = torch.arange(width, device=seen.device) < counts[:, None]
        gained = (seen * real[:, None, :, None]).sum(dim=2)
        mass[:rows, layer, :, : slots.stop] += gained
    return ungrouped(out, q_heads).contiguous(), None


AttentionInterface.register(ATTENTION, slot_attention)


def eos_ids(*configs: object) -> list[int]:
    """Ids that end a sequence, of the first configuration that names any."""
    for config in configs:
        eos = getattr(config, "eos_token_id", None)
        if eos is not None:
            return [eos] if isinstance(eos, int) else list(eos)
    return []


class ModelAdapter:
    """A decoder (and its LM head, if any) that runs over slot stores."""

    def __init__(self, model: PreTrainedModel, *, name: str, max_context: int) -> None:
        self.name = name
        self.max_context = max_context
        self.config: PretrainedConfig = model.config.get_text_config()
        self.head: nn.Module | None = model.get_output_embeddings()
        self.decoder: nn.Module = model.get_decoder() if self.head is not None else model
        self._refuse_unsupported()
        self.generation_eos = eos_ids(getattr(model, "generation_config", None), self.config)
        """Ids that the checkpoint names as end of sequence."""
        model.set_attn_implementation(ATTENTION)
        model.eval()
        model.requires_grad_(False)
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype

    def _refuse_unsupported(self) -> None:
        c = self.config
        for knob in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(c, knob, None) not in (None, 1, 1.0):
                raise ModelLoadError(
                    f"{self.name}: config.{knob} = {getattr(c, knob)} changes the logits after the "
                    "head, which the engine does not support; use a Qwen2, Qwen3, Llama or Mistral "
                    "family model"
                )
        window = getattr(c, "sliding_window", None)
        kinds = set(getattr(c, "layer_types", None) or ["full_attention"])
        slides = "sliding_attention" in kinds or (
            bool(window) and getattr(c, "use_sliding_window", c.model_type == "mistral")
        )
        if slides and window and window < self.max_context:
            raise ModelLoadError(
                f"{self.name}: sliding-window attention of {window} tokens is shorter than "
                f"max_context = {self.max_context}; set max_context <= {window}"
            )
        if unknown := kinds - {"full_attention", "sliding_attention"}:
            raise ModelLoadError(
                f"{self.name}: layer types {sorted(unknown)} have no KV cache the engine can hold; "
                "use a model whose layers are all attention layers"
            )

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    def shape(
        self,
        observation: int = 0,
        attention: bool = False,
        tracker: ScoreTracker | None = None,
    ) -> KVShape:
        """Cache geometry for a store of this model."""
        c = self.config
        heads = int(c.num_attention_heads)
        head_dim = int(getattr(c, "head_dim", None) or c.hidden_size // heads)
        return KVShape(
            layers=int(c.num_hidden_layers),
            q_heads=heads,
            kv_heads=int(getattr(c, "num_key_value_heads", None) or heads),
            head_dim=head_dim,
            dtype=self.dtype,
            device=self.device,
            observation=observation,
            attention=attention,
            entry_state=tracker.entry_state(head_dim) if tracker else {},
            head_state=tracker.head_state(head_dim) if tracker else {},
        )

    def forward(
        self,
        store: SlotStore,
        tokens: np.ndarray,
        counts: np.ndarray,
        branches: np.ndarray | None = None,
    ) -> Tensor:
        """Feed `tokens` [rows, width] (right-padded, `counts` real ones) to the first rows.

        `branches`: see `ForwardBatch`. Returns the final hidden states [rows, width, hidden]; the
        store has advanced.
        """
        return self.feed(ForwardBatch(store, counts, tokens.shape[1], branches), tokens)

    @torch.no_grad()
    def feed(self, batch: ForwardBatch | PackedBatch, tokens: np.ndarray) -> Tensor:
        """Run the decoder over `tokens` [rows, width] as the batch lays them out; final hidden
        states [rows, width, hidden]. The batch's store has advanced."""
        out = self.decoder(
            input_ids=torch.from_numpy(tokens).to(self.device),
            position_ids=batch.positions,
            use_cache=False,
            slots=batch,
        )
        batch.advance()
        hidden: Tensor = out.last_hidden_state
        return hidden

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Raw logits [..., vocab] in float32 of hidden states."""
        if self.head is None:
            raise ModelLoadError(f"{self.name} has no language-model head")
        out: Tensor = self.head(hidden)
        return out.float()

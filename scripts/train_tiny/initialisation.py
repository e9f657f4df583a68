"""A structured start for the language models: minutes of training instead of hours.

Models of this size do not find the look-up ("what followed this word before?") within thousands of
steps from an ordinary random start. Three structures, all inside the plain Qwen2 architecture and
all free to change in training, make it appear within a hundred steps:

1. Mimetic attention (Trockman & Kolter 2023): value times output starts near a positive multiple of
   a projection, and above layer 0 query times key does too, so attention starts by matching equal
   content and copying it. The unembedding starts aligned with the embedding for the same reason.
2. Fixed offsets: the query and key biases of layer 0 are chosen so that RoPE turns each head into
   "look back D tokens". Offset 1 and 2 build the look-up; in a solution the running total stands 7
   tokens before the place that copies it, and the last list index stands 11 before the next one.
3. Fourier numbers: the embedding of a number holds the cosine and sine of its phase at several
   periods, so that adding is rotating. A model without the short periods sees numbers blurred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

from scripts.train_tiny.tokenizer import (
    END_OF_TEXT,
    NUMBERS,
    PRICES,
    PROMPT_START,
    TOKEN_ID,
    VOCABULARY,
)

HEAD_DIM = 32
ROPE_THETA = 1e6
MAX_POSITIONS = 1024

OFFSETS = (1, 2, 11, 7)
"""How far each query head of layer 0 looks back."""
_OFFSET_PAIRS = range(6)
_OFFSET_STRENGTH = 5.0
_KEY_STRENGTH = (1.0, 0.6)
"""Per KV head: the second one, with the far offsets, starts softer, to leave room for content."""

_EMBEDDING_SCALE = 0.5
_UNEMBEDDING_SCALE = 0.2
_NOISE = 0.02


@dataclass(frozen=True)
class ModelSize:
    """The size of a language model, and how finely it sees numbers."""

    layers: int
    width: int
    feed_forward: int
    number_periods: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2


def build_language_model(size: ModelSize, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 language model with the structured start; deterministic in ``seed``."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        initializer_range=0.05,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=TOKEN_ID[PROMPT_START],
        eos_token_id=TOKEN_ID[END_OF_TEXT],
        pad_token_id=TOKEN_ID[END_OF_TEXT],
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        _start_embeddings(model, size)
        for number, layer in enumerate(model.model.layers):
            layer.mlp.down_proj.weight.mul_(0.3)
            _start_mimetic(layer.self_attn, size, match_content=number > 0)
        _start_offsets(model.model.layers[0].self_attn, size)
    return model


def fourier_code(number: int, periods: tuple[int, ...]) -> Tensor:
    """Cosines, then sines, of a number's phase at each period."""
    phase = 2 * math.pi * number / torch.tensor(periods, dtype=torch.float32)
    return torch.cat([phase.cos(), phase.sin()])


def look_back_biases(offset: float, pairs: range, strength: float) -> tuple[Tensor, Tensor]:
    """Query and key bias that RoPE turns into attention to what stands ``offset`` tokens back.

    ``pairs`` are the rotated pairs of dimensions to use; the first ones turn fastest and are
    the most exact.
    """
    half = HEAD_DIM // 2
    phases = offset * ROPE_THETA ** (-torch.tensor(pairs) / half)
    cosines, sines = slice(pairs.start, pairs.stop), slice(half + pairs.start, half + pairs.stop)
    query, key = torch.zeros(HEAD_DIM), torch.zeros(HEAD_DIM)
    query[cosines], query[sines] = strength * phases.cos(), -strength * phases.sin()
    key[cosines] = strength
    return query, key


def head_rows(head: int) -> slice:
    """The rows (or columns) of a projection that belong to one head."""
    return slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)


def orthonormal_rows(rows: int, width: int) -> Tensor:
    """A random projection with orthonormal rows."""
    return torch.linalg.qr(torch.randn(width, rows))[0].T


def _start_embeddings(model: Qwen2ForCausalLM, size: ModelSize) -> None:
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0, _EMBEDDING_SCALE)
    code_size = 2 * len(size.number_periods)
    # Plain numbers and prices live in subspaces of their own, at the norm of the other tokens.
    directions = torch.linalg.qr(torch.randn(size.width, size.width))[0]
    scale = 0.9 * _EMBEDDING_SCALE * math.sqrt(size.width / len(size.number_periods))
    for kind, tokens in enumerate((NUMBERS, PRICES)):
        kind_direction = 0.2 * torch.randn(size.width)
        subspace = directions[kind * code_size : (kind + 1) * code_size]
        for token in tokens:
            code = fourier_code(int(token), size.number_periods)
            noise = 0.05 * torch.randn(size.width)
            embedding[TOKEN_ID[token]] = scale * code @ subspace + kind_direction + noise
    model.lm_head.weight.copy_(_UNEMBEDDING_SCALE * embedding)


def _start_mimetic(attention: Qwen2Attention, size: ModelSize, *, match_content: bool) -> None:
    width = size.width
    group = size.heads // size.kv_heads
    copy_strength = 0.25 if match_content else 0.35

    def noise(*shape: int) -> Tensor:
        return _NOISE * torch.randn(*shape)

    for kv_head in range(size.kv_heads):
        values = orthonormal_rows(HEAD_DIM, width)
        keys = 1.1 * orthonormal_rows(HEAD_DIM, width)
        attention.v_proj.weight[head_rows(kv_head)] = values + noise(HEAD_DIM, width)
        if match_content:
            attention.k_proj.weight[head_rows(kv_head)] = keys + noise(HEAD_DIM, width)
        for head in range(kv_head * group, (kv_head + 1) * group):
            output = copy_strength * values.T + noise(width, HEAD_DIM)
            attention.o_proj.weight[:, head_rows(head)] = output
            if match_content:
                attention.q_proj.weight[head_rows(head)] = keys + noise(HEAD_DIM, width)


def _start_offsets(attention: Qwen2Attention, size: ModelSize) -> None:
    group = size.heads // size.kv_heads
    for head, offset in enumerate(OFFSETS):
        query, key = look_back_biases(offset, _OFFSET_PAIRS, _OFFSET_STRENGTH)
        kv_head = head // group
        attention.q_proj.bias[head_rows(head)] = query
        attention.k_proj.bias[head_rows(kv_head)] = _KEY_STRENGTH[kv_head] * key

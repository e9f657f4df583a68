"""Tiny random models of every supported family, and helpers to run them on the engine."""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from kvrescue.engine.adapter import ModelAdapter
from kvrescue.engine.engine import Engine
from kvrescue.engine.slots import KVShape
from kvrescue.evictors.base import Evictor
from kvrescue.evictors.tracking import ScoreTracker

VOCAB = 61
EOS = 60
FAMILIES = ("qwen2", "qwen3", "llama", "mistral")

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
_CONFIGS = {
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen3": lambda: Qwen3Config(head_dim=16, **_COMMON),
    "llama": lambda: LlamaConfig(**_COMMON),
    "mistral": lambda: MistralConfig(sliding_window=None, **_COMMON),
}


class Alphabet:
    """Token texts without a tokenizer: id 1 is the separator, id 2 a newline, others letters."""

    fingerprint = "alphabet"

    def __getitem__(self, token_id: int) -> bytes:
        return {1: b"\n\n", 2: b"\n", EOS: b""}.get(token_id, bytes([97 + token_id % 26]))


def shape_for(
    evictor: Evictor, tracker: ScoreTracker | None, layers: int, kv_heads: int, group: int, dim: int
) -> KVShape:
    """Geometry of a store without a model."""
    return KVShape(
        layers=layers,
        q_heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
        observation=evictor.observation,
        attention=evictor.needs_attention,
        entry_state=tracker.entry_state(dim) if tracker else {},
        head_state=tracker.head_state(dim) if tracker else {},
    )


def random_model(family: str = "qwen2", seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(_CONFIGS[family]()).eval()


def engine_for(model: PreTrainedModel, evictor: Evictor | None = None, **kwargs: Any) -> Engine:
    adapter = ModelAdapter(model, name="random", max_context=256)
    return Engine(adapter, evictor=evictor, pieces=Alphabet(), eos=frozenset([EOS]), **kwargs)


@functools.cache
def shared_model(family: str = "qwen2") -> PreTrainedModel:
    """One model per family for tests that only read it."""
    return random_model(family)

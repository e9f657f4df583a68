"""Tiny checkpoints in Hugging Face layout, written by the tests that break them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from tests.engine.tokenizers import byte_level

HIDDEN = 32


def config(**changes: Any) -> Qwen2Config:
    options: dict[str, Any] = {
        "vocab_size": 448,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": 2,
    }
    return Qwen2Config(**(options | changes))


def save_lm(
    folder: Path,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerFast | None = None,
    seed: int = 0,
) -> Path:
    """A random language model with its tokenizer."""
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (tokenizer or byte_level()).save_pretrained(folder)
    return folder


def two_layer_head(labels: int = 2) -> dict[str, Tensor]:
    """The head of Qwen2.5-Math-PRM."""
    return {
        "score.0.weight": torch.randn(HIDDEN, HIDDEN) * 0.3,
        "score.0.bias": torch.randn(HIDDEN) * 0.1,
        "score.2.weight": torch.randn(labels, HIDDEN) * 0.3,
        "score.2.bias": torch.randn(labels) * 0.1,
    }


def save_prm(
    folder: Path,
    head: Mapping[str, Tensor] | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    **changes: Any,
) -> Path:
    """A random PRM in the published layout: `model.*`, `score.*`, remote code named, none there."""
    settings = config(**changes)
    save_lm(folder, settings, tokenizer, seed=1)
    state = load_file(folder / "model.safetensors")
    state = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    torch.manual_seed(2)
    save_file(state | dict(head or two_layer_head()), folder / "model.safetensors")
    settings.architectures = ["Qwen2ForProcessRewardModel"]
    settings.auto_map = {
        "AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig",
        "AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel",
    }
    settings.save_pretrained(folder)
    return folder


def edit(folder: Path, change: Mapping[str, Tensor | None]) -> None:
    """Replace tensors of a checkpoint; None removes one."""
    state = load_file(folder / "model.safetensors") | {
        k: v for k, v in change.items() if v is not None
    }
    for name in [k for k, v in change.items() if v is None]:
        del state[name]
    save_file(state, folder / "model.safetensors")

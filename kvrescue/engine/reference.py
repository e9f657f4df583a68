"""What transformers itself generates: the yardstick that the engine must equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from kvrescue.engine.checkpoint import resolve

__all__ = ["greedy_tokens"]


@torch.no_grad()
def greedy_tokens(model: str, prompt: Sequence[int], count: int) -> list[int]:
    """At most `count` tokens that `generate` appends greedily, in float32 on the CPU.

    Args:
        model: a checkpoint in Hugging Face layout, named as for `resolve`.
        prompt: token ids.
        count: how many tokens to add unless EOS comes first.
    """
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            resolve(model).path, dtype=torch.float32, local_files_only=True
        )
    finally:
        if bars:
            logging.enable_progress_bar()
    output = loaded.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=count,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens

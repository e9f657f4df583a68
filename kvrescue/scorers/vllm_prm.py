"""VLLMPRM: a process reward model on stock vLLM, in this process.

vLLM keeps nothing of a trajectory, so every candidate is sent whole. With its prefix cache the
common beginning is computed once all the same: only the rows of new tokens come back, and the last
one is always among them. Without it every text is computed from its first token, and the model is
asked as vLLM serves it: rows of the step tags alone, or of all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import nn
from transformers import AutoConfig

from kvrescue.engine.checkpoint import Checkpoint, resolve
from kvrescue.engine.choices import DType
from kvrescue.engine.heads import fill, head_weights
from kvrescue.engine.loading import context_limit, load_tokenizer
from kvrescue.errors import ModelLoadError
from kvrescue.options import checked_by
from kvrescue.policies.vllm.support import require_vllm
from kvrescue.scorers.base import Scorer
from kvrescue.scorers.prm_text import PRMText, Text
from kvrescue.scorers.qwen_prm import reward_head
from kvrescue.scorers.rows import positive
from kvrescue.scorers.specs import SYSTEM, Convention, VLLMPRMSpec
from kvrescue.types import Candidate, Context

__all__ = ["VLLMPRM"]

_HEAD = "score."


class VLLMPRM(Scorer):
    """Scores candidate steps with a reward model that vLLM runs in this process.

    Checkpoints as for `QwenPRM`; arguments as in `VLLMPRMSpec`.

    Raises DependencyError (vLLM missing or of an unsupported version), ConfigError (an unsupported
    combination) and ModelLoadError.
    """

    @checked_by(VLLMPRMSpec)
    def __init__(
        self,
        model: str,
        *,
        convention: Convention = "step_tag",
        step_tag: str = "<extra_0>",
        system: str | None = SYSTEM,
        max_context: int | None = None,
        max_live_rows: int = 128,
        prefix_caching: bool = True,
        kv_cache_bytes: int | None = None,
        dtype: DType = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require_vllm(VLLMPRMSpec.kind)
        from kvrescue.policies.vllm.pooling import PoolingDriver, pooling_config
        from kvrescue.policies.vllm.reward import overrides
        from kvrescue.policies.vllm.start import default_memory, default_type

        checkpoint = resolve(model)
        self.name = model
        tokenizer, _ = load_tokenizer(checkpoint)
        self.text = PRMText(
            model, tokenizer, convention=convention, step_tag=step_tag, system=system
        )
        self._steps = self.text.tag is not None and not prefix_caching
        """Whether there is one row per step, not one per token."""
        folder, settings, biases = _inspected(checkpoint)
        self.max_context = context_limit(settings, max_context)
        weights = default_type(dtype)
        config = pooling_config(
            folder,
            pooling="STEP" if self._steps else "ALL",
            step_tag=self.text.tag if self._steps else None,
            cached=prefix_caching,
            overrides=overrides(settings, biases),
            dtype=weights,
            max_context=self.max_context,
            kv_cache_bytes=default_memory(
                kv_cache_bytes, max_live_rows * self.max_context, settings, weights
            ),
            max_live=max_live_rows,
            options=options or {},
        )
        self.driver = PoolingDriver(config, model, cached=prefix_caching)

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        if not candidates:
            return []
        texts = self.text.texts(context, candidates, self.max_context)
        unique = list(dict.fromkeys(texts))
        pooled = await self.driver.run([text.ids for text in unique])
        value = {
            text: positive(
                found.rows,
                self._rows(text, found.skipped),
                what=self.name,
                advice="vLLM pools otherwise than it was told to: check `options`",
            )
            for text, found in zip(unique, pooled, strict=True)
        }
        return [value[text] for text in texts]

    def _rows(self, text: Text, skipped: int) -> int:
        return text.steps if self._steps else len(text.ids) - skipped

    async def aclose(self) -> None:
        """Stop the engine and free its memory."""
        await self.driver.aclose()


def _inspected(checkpoint: Checkpoint) -> tuple[str, Any, tuple[bool, ...]]:
    """The checkpoint's folder and configuration, and for each layer of its head whether it has a
    bias. Raises ModelLoadError for anything that is not a reward model with two labels."""
    if checkpoint.gguf:
        raise ModelLoadError(
            f"model = {checkpoint.name!r}: GGUF files hold no reward head; use safetensors"
        )
    try:
        folder = checkpoint.path
        if not checkpoint.local:
            folder = snapshot_download(
                checkpoint.path,
                allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"],
                local_files_only=checkpoint.offline,
            )
        settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ModelLoadError(f"model = {checkpoint.name!r}: cannot be loaded: {reason}") from error
    local = Checkpoint(checkpoint.name, str(Path(folder)), local=True)
    weights = head_weights(local, _HEAD)
    with torch.random.fork_rng(devices=[]):  # a new layer draws its weights
        head = reward_head(set(weights), settings)
    fill(local, head, weights, _HEAD)
    biases = tuple(
        layer.bias is not None for layer in head.modules() if isinstance(layer, nn.Linear)
    )
    return local.path, settings, biases

"""VLLMPolicy: a Hugging Face decoder on stock vLLM, evicted or with full context."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, GenerationConfig

from kvrescue.detectors.base import Source
from kvrescue.engine.adapter import eos_ids
from kvrescue.engine.checkpoint import Checkpoint, resolve
from kvrescue.engine.choices import DType, Template
from kvrescue.engine.loading import context_limit
from kvrescue.evictors.base import Evictor
from kvrescue.options import checked_by
from kvrescue.policies.local import LocalPolicy, check_evictor
from kvrescue.policies.specs import VLLMPolicySpec, with_interval
from kvrescue.policies.vllm.refusals import check_needs
from kvrescue.policies.vllm.support import require_vllm

__all__ = ["VLLMPolicy"]


class VLLMPolicy(LocalPolicy):
    """Proposes steps with a model that vLLM runs in this process.

    `evictor` None means full context: stock vLLM with prefix caching. An evictor whose `interval`
    was not given evicts every 16 tokens here (1, the paper's, scores the whole cache for each).
    Arguments as in `VLLMPolicySpec`.

    Raises DependencyError (vLLM missing or of an unsupported version), ConfigError (an unsupported
    combination, see `refusals.REFUSALS`) and ModelLoadError.
    """

    @checked_by(VLLMPolicySpec, but=["evictor"])
    def __init__(
        self,
        model: str,
        *,
        evictor: Evictor | None = None,
        system: str | None = None,
        template: Template = "chat",
        max_context: int | None = None,
        max_live_rows: int = 128,
        candidates: int = 1,
        kv_cache_bytes: int | None = None,
        dtype: DType = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_evictor(evictor)
        require_vllm()
        from kvrescue.policies.vllm.engine import VLLMEngine
        from kvrescue.policies.vllm.start import default_memory, default_type, engine_config

        if evictor is not None and not evictor.bounded:
            evictor = None
        if evictor is not None:
            check_needs(evictor)
            evictor = with_interval(evictor)
        checkpoint = resolve(model)
        self._read_tokenizer(checkpoint, system, template)
        model_config = _model_config(checkpoint)
        text_config = model_config.get_text_config()
        self.max_context = context_limit(text_config, max_context)
        weights = default_type(dtype)
        config = engine_config(
            checkpoint,
            evictor,
            dtype=weights,
            max_context=self.max_context,
            kv_cache_bytes=default_memory(
                kv_cache_bytes, max_live_rows * self.max_context, text_config, weights
            ),
            max_live=max_live_rows,
            options=options or {},
        )
        self.engine: VLLMEngine = VLLMEngine(
            config,
            name=checkpoint.name,
            evictor=evictor,
            pieces=self.pieces,
            eos=self._eos(_generation_eos(checkpoint, model_config)),
            candidates=candidates,
        )

    @property
    def source(self) -> Source:
        return Source(vocab_size=self.engine.vocab_size, max_step_tokens=self.max_context)

    def expect(self, candidates: int) -> None:
        """Promise blocks for so many candidates, at least, to problems that open from now on."""
        self.engine.candidates = max(self.engine.candidates, candidates)

    async def aclose(self) -> None:
        """Stop the engine and free its memory."""
        await self.engine.driver.aclose()


def _model_config(checkpoint: Checkpoint) -> Any:
    kwargs = checkpoint.kwargs
    if checkpoint.gguf:
        kwargs["gguf_file"] = checkpoint.gguf
    return AutoConfig.from_pretrained(checkpoint.path, **kwargs)


def _generation_eos(checkpoint: Checkpoint, config: Any) -> list[int]:
    """Ids that the checkpoint names as end of sequence."""
    generation = None
    if not checkpoint.gguf:
        with contextlib.suppress(OSError):  # no generation_config.json
            generation = GenerationConfig.from_pretrained(checkpoint.path, **checkpoint.kwargs)
    return eos_ids(generation, config)

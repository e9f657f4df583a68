"""Combinations of settings that are not supported, fail closed.

`REFUSALS` is the one table of them, for the checks as for the documentation. Everything that is
not in it and does not fit is caught by the start-up self-test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from kvrescue.errors import ConfigError
from kvrescue.evictors.base import Evictor

__all__ = ["REFUSALS", "Refusal", "check_config", "check_needs", "refuse"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A setting that is not supported."""

    setting: str
    found: Callable[[Any], Any]
    """The offending value in a VllmConfig, or None."""
    why: str
    change: str
    always: bool = False
    """Whether it is refused without an evictor, too."""

    def error(self, value: object) -> ConfigError:
        """What to raise for a value."""
        where = "" if self.always else " with an evictor"
        return ConfigError(
            f"vLLM: {self.setting} = {value!r} is not supported{where}: {self.why}; {self.change}"
        )


def _quantised(config: Any) -> Any:
    dtype = str(config.cache_config.cache_dtype)
    return None if dtype in ("auto", "float32", "float16", "bfloat16") else dtype


def _full_graphs(config: Any) -> Any:
    mode = config.compilation_config.cudagraph_mode
    return str(mode) if mode is not None and mode.has_full_cudagraphs() else None


def _copied_heads(config: Any) -> int | None:
    ranks = config.parallel_config.tensor_parallel_size
    return ranks if ranks > config.model_config.get_total_num_kv_heads() else None


def _other_executor(config: Any) -> str | None:
    parallel = config.parallel_config
    backend = parallel.distributed_executor_backend
    if backend in ("uni", "mp") and parallel.nnodes == 1:
        return None
    return str(backend) if parallel.nnodes == 1 else f"{parallel.nnodes} nodes"


def _more_than_one(value: int) -> int | None:
    return value if value > 1 else None


REFUSALS: Final = (
    Refusal(
        "enable_prefix_caching",
        lambda c: c.cache_config.enable_prefix_caching or None,
        "evicted blocks are rewritten in place, so a shared one would leak into other requests",
        "leave it off (the full-context helper has it on)",
    ),
    Refusal(
        "async_scheduling",
        lambda c: c.scheduler_config.async_scheduling or None,
        "the step after a stop would already be in flight",
        "set async_scheduling=False",
        always=True,
    ),
    Refusal(
        "speculative_config",
        lambda c: c.speculative_config and c.speculative_config.method,
        "drafted tokens that are rejected would stay in the cache",
        "leave speculative decoding off",
        always=True,
    ),
    Refusal(
        "model_runner",
        lambda c: "v2" if c.use_v2_model_runner else None,
        "the V2 model runner is not the one that kvrescue extends",
        "set VLLM_USE_V2_MODEL_RUNNER=0",
        always=True,
    ),
    Refusal(
        "runner",
        lambda c: None if c.model_config.runner_type == "generate" else c.model_config.runner_type,
        "a pooling model proposes nothing",
        "use a causal language model",
        always=True,
    ),
    Refusal(
        "model: encoder-decoder",
        lambda c: c.model_config.is_encoder_decoder or None,
        "its cross-attention cache has no temporal order",
        "use a decoder-only model",
        always=True,
    ),
    Refusal(
        "model: multimodal",
        lambda c: c.model_config.is_multimodal_model or None,
        "images have no place in a text trajectory",
        "use a text-only model",
        always=True,
    ),
    Refusal(
        "enable_lora",
        lambda c: c.lora_config and "True",
        "adapters per request are not tested",
        "merge the adapter into the checkpoint",
        always=True,
    ),
    Refusal(
        "pipeline_parallel_size",
        lambda c: _more_than_one(c.parallel_config.pipeline_parallel_size),
        "entropies and queries live on different ranks",
        "use tensor_parallel_size instead",
        always=True,
    ),
    Refusal(
        "tensor_parallel_size",
        _copied_heads,
        "ranks that hold copies of one KV head see only some of its queries and would keep "
        "different entries",
        "use at most as many ranks as the model has KV heads",
    ),
    Refusal(
        "distributed_executor_backend",
        _other_executor,
        "only worker processes on this machine are tested",
        "leave it out",
        always=True,
    ),
    Refusal(
        "data_parallel_size",
        lambda c: _more_than_one(c.parallel_config.data_parallel_size),
        "one in-process scheduler owns all states",
        "start several processes instead",
        always=True,
    ),
    Refusal(
        "decode_context_parallel_size",
        lambda c: _more_than_one(c.parallel_config.decode_context_parallel_size),
        "a rank sees only part of a sequence and cannot score it",
        "leave it at 1",
    ),
    Refusal(
        "prefill_context_parallel_size",
        lambda c: _more_than_one(c.parallel_config.prefill_context_parallel_size),
        "a rank sees only part of a sequence and cannot score it",
        "leave it at 1",
    ),
    Refusal(
        "kv_cache_dtype",
        _quantised,
        "scores would be those of rounded keys, and requantising loses more each time",
        "use kv_cache_dtype='auto'",
    ),
    Refusal(
        "sliding_window",
        lambda c: c.model_config.get_sliding_window(),
        "the distance between cache slots is no longer the distance between tokens",
        "use a model with full attention",
    ),
    Refusal(
        "attention_chunk_size",
        lambda c: getattr(c.model_config.hf_text_config, "attention_chunk_size", None),
        "chunks are counted in cache slots",
        "use a model with full attention",
    ),
    Refusal(
        "model: MLA",
        lambda c: c.model_config.use_mla or None,
        "its cache holds latents, not keys per head",
        "use a model with multi-head or grouped-query attention",
    ),
    Refusal(
        "model: state space",
        lambda c: c.model_config.is_hybrid or c.model_config.is_attention_free or None,
        "there are no entries to evict",
        "use a model with full attention in every layer",
    ),
    Refusal(
        "kv_transfer_config",
        lambda c: c.kv_transfer_config and c.kv_transfer_config.kv_connector,
        "connectors move blocks whose content changes under them",
        "leave KV transfer and offloading off",
    ),
    Refusal(
        "kv_sharing_fast_prefill",
        lambda c: c.cache_config.kv_sharing_fast_prefill or None,
        "layers that share a cache cannot be evicted one by one",
        "leave it off",
    ),
    Refusal(
        "enable_dbo",
        lambda c: c.parallel_config.enable_dbo or None,
        "queries of two micro-batches would be mixed up",
        "leave it off",
    ),
    Refusal(
        "cudagraph_mode",
        _full_graphs,
        "a captured graph does not call the hook that records queries",
        "use cudagraph_mode='PIECEWISE' or enforce_eager=True",
    ),
)
"""Everything that is refused, in the order in which it is checked."""


def check_config(config: Any, evictor: Evictor | None) -> None:
    """Raises ConfigError for the first unsupported setting of a VllmConfig."""
    refuse(config, [r for r in REFUSALS if evictor is not None or r.always])


def refuse(config: Any, refusals: Iterable[Refusal]) -> None:
    """Raises ConfigError for the first of them that a VllmConfig meets."""
    for refusal in refusals:
        value = refusal.found(config)
        if value is not None and value is not False:
            raise refusal.error(value)


def check_needs(evictor: Evictor) -> None:
    """Raises ConfigError for an evictor that needs what vLLM's kernels do not return."""
    if evictor.needs_attention:
        raise ConfigError(
            f"vLLM: evictor = {evictor.kind!r} is not supported: it needs the attention mass of "
            "every step, which vLLM's kernels do not return; use rkv, snapkv, streaming_llm or "
            "random, or kind: torch"
        )

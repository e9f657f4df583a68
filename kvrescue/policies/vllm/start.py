"""From a policy's options to a checked VllmConfig."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform

from kvrescue.engine.checkpoint import Checkpoint
from kvrescue.errors import ConfigError, KVRescueError, nearest
from kvrescue.evictors.base import Evictor
from kvrescue.policies.vllm.alone import alone
from kvrescue.policies.vllm.export import model_folder
from kvrescue.policies.vllm.options import OWNED, pack
from kvrescue.policies.vllm.refusals import REFUSALS, check_config

__all__ = ["common_settings", "create_config", "default_memory", "default_type", "engine_config"]

_SCHEDULERS = {
    True: "kvrescue.policies.vllm.scheduler.EvictingScheduler",
    False: "kvrescue.policies.vllm.scheduler.DraftScheduler",
}


def engine_config(
    checkpoint: Checkpoint,
    evictor: Evictor | None,
    *,
    dtype: str,
    max_context: int,
    kv_cache_bytes: int | None,
    max_live: int,
    options: Mapping[str, Any],
) -> Any:
    """A VllmConfig in which nothing is unsupported. Raises ConfigError.

    `options` are further fields of vLLM's EngineArgs; they override our defaults and are checked.
    """
    folder = model_folder(checkpoint)
    settings = {
        **common_settings(folder, dtype, max_context, kv_cache_bytes, max_live),
        "enable_prefix_caching": evictor is None,
        "scheduler_cls": _SCHEDULERS[evictor is not None],
        "worker_cls": (
            "kvrescue.policies.vllm.worker.CPUWorker"
            if current_platform.is_cpu()
            else "kvrescue.policies.vllm.cuda_worker.CUDAWorker"
        ),
        "additional_config": pack(evictor),
        **_overrides(folder),
    }
    config = create_config(settings, options, ours=OWNED, owner="policy")
    check_config(config, evictor)
    return config


def common_settings(
    folder: str, dtype: str, max_context: int, kv_cache_bytes: int | None, max_live: int
) -> dict[str, Any]:
    """Fields of EngineArgs that all our engines have."""
    return {
        "model": folder,
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "dtype": dtype,
        "seed": 0,
        "max_model_len": max_context,
        "max_num_seqs": max_live,
        "max_num_batched_tokens": max(2048, max_context, max_live),
        "block_size": 32 if current_platform.is_cpu() else 16,
        "async_scheduling": False,
        "enforce_eager": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "kv_cache_memory_bytes": kv_cache_bytes,
    }


def create_config(
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    ours: Mapping[str, str],
    owner: str,
) -> Any:
    """A VllmConfig of the settings and the user's options, which override them but for `ours`.

    Args:
        settings: fields of EngineArgs.
        options: the same, from the user.
        ours: what may not stand there, and what to do instead.
        owner: what has them: "policy" or "scorer".

    Raises ConfigError.
    """
    known = {field.name for field in fields(EngineArgs)}
    for name, value in options.items():
        if name in ours:
            raise ConfigError(
                f"options.{name} = {value!r:.80} is set by the {owner} itself: {ours[name]}"
            )
        if name not in known:
            close = nearest(name, known) if get_close_matches(name, known) else ""
            raise ConfigError(f"options.{name}: vLLM has no such option{close}")
    merged = {**settings, **options}
    _choose_executor(merged)
    try:
        return alone(lambda: EngineArgs(**merged).create_engine_config())
    except KVRescueError:
        raise
    except Exception as error:  # whatever its checks stumble over
        raise _refused(error, options) from error


def _refused(error: Exception, options: Mapping[str, Any]) -> ConfigError:
    """One line for what vLLM does not take; ours where we would refuse the same."""
    for refusal in REFUSALS:
        value = options.get(refusal.setting)
        if refusal.always and value not in (None, False, 0, 1):
            return refusal.error(value)
    if isinstance(error, ValidationError):
        item = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in item["loc"])
        if field in options:
            return ConfigError(
                f"options.{field} = {options[field]!r:.80}: vLLM refuses it: {item['msg']}"
            )
        reason = f"{field}: {item['msg']}" if field else item["msg"]
    else:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
    given = ", ".join(f"{name} = {value!r:.40}" for name, value in options.items())
    return ConfigError(f"vLLM refuses its options ({given or 'none given'}): {reason[:300]}")


def _choose_executor(settings: dict[str, Any]) -> None:
    """Where ranks run, unless the settings say so."""
    parallel = settings.get("tensor_parallel_size", 1) != 1
    # One rank runs in this process, where vLLM would start another one.
    settings.setdefault("distributed_executor_backend", "mp" if parallel else "uni")


def _overrides(folder: str) -> dict[str, Any]:
    """vLLM's Qwen2 ignores `head_dim`; its Llama, given biases, computes the same."""
    file = Path(folder, "config.json")
    if not file.is_file():
        return {}
    found = json.loads(file.read_text())
    heads, width = found.get("num_attention_heads"), found.get("hidden_size")
    if found.get("model_type") != "qwen2" or not (heads and width):
        return {}
    if found.get("head_dim", width // heads) == width // heads:
        return {}
    return {"hf_overrides": {"architectures": ["LlamaForCausalLM"], "qkv_bias": True}}


def default_type(dtype: str) -> str:
    """`auto` is float32 on the CPU, where vLLM's bfloat16 is slower, and bfloat16 on CUDA."""
    return ("float32" if current_platform.is_cpu() else "bfloat16") if dtype == "auto" else dtype


_MOST = 1 << 30
"""Bytes of a KV cache on the CPU, unless more are asked for: vLLM touches all of it at once."""


def default_memory(
    kv_cache_bytes: int | None, tokens: int, text_config: Any, dtype: str
) -> int | None:
    """Bytes of the KV cache; None leaves it to vLLM, which takes its share of the GPU.

    On the CPU it is what `tokens` take in a model of `text_config`, at most 1 GiB.
    """
    if kv_cache_bytes is not None or not current_platform.is_cpu():
        return kv_cache_bytes
    heads = getattr(text_config, "num_attention_heads", None)
    layers = getattr(text_config, "num_hidden_layers", None)
    width = getattr(text_config, "hidden_size", None)
    if not (heads and layers and width):
        return _MOST
    kv_heads = getattr(text_config, "num_key_value_heads", None) or heads
    size = getattr(text_config, "head_dim", None) or width // heads
    entry = 2 * int(layers * kv_heads * size) * int(getattr(torch, dtype).itemsize)
    return min(_MOST, tokens * entry)

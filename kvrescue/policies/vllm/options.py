"""How an evictor reaches vLLM's worker processes: by name and options, as plain JSON.

vLLM hashes and pickles `additional_config`, and workers may be other processes, so the evictor
travels as "module:Class" plus its fields. A class that cannot be imported by that name is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from kvrescue.errors import ConfigError
from kvrescue.evictors.base import Evictor
from kvrescue.policies.vllm.messages import KEY

__all__ = ["OWNED", "evictor_of", "pack"]

_TOKENIZER: Final = "it comes with `model`"
_INSIDE: Final = "kvrescue needs its own; leave it out"
OWNED: Final[Mapping[str, str]] = {
    "model": "write `model`",
    "model_weights": "write `model`",
    "served_model_name": "write `model`",
    "hf_config_path": _TOKENIZER,
    "revision": "download that revision, and write its folder as `model`",
    "code_revision": "code of checkpoints is never run; leave it out",
    "trust_remote_code": "code of checkpoints is never run; leave it out",
    "tokenizer": _TOKENIZER,
    "tokenizer_mode": _TOKENIZER,
    "tokenizer_revision": _TOKENIZER,
    "skip_tokenizer_init": _TOKENIZER,
    "max_model_len": "write `max_context`",
    "max_num_seqs": "write `max_live_rows`",
    "kv_cache_memory_bytes": "write `kv_cache_bytes`",
    "dtype": "write `dtype`",
    "seed": "every candidate has its own seed, drawn from the run's `seed`",
    "generation_config": "write `sampling` of the run",
    "override_generation_config": "write `sampling` of the run",
    "logits_processors": "write `sampling` of the run",
    "scheduler_cls": _INSIDE,
    "worker_cls": _INSIDE,
    "additional_config": _INSIDE,
}
"""Fields of EngineArgs that a policy sets by itself, and where to say the same."""


def pack(evictor: Evictor | None) -> dict[str, Any]:
    """`additional_config` for an engine with this evictor. Raises ConfigError."""
    if evictor is None:
        return {KEY: {"evictor": None}}
    kind = type(evictor)
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        found = _load(name)
    except (ImportError, AttributeError):
        found = None
    if found is not kind:
        raise ConfigError(
            f"evictor = {name!r} cannot be imported by that name, which vLLM's workers must do; "
            "define the class at the top level of an importable module"
        )
    return {KEY: {"evictor": name, "options": evictor.model_dump(mode="json")}}


def evictor_of(additional_config: object) -> Evictor | None:
    """The evictor that `pack` wrote, None for an engine without one. Raises ConfigError."""
    packed = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
    if not isinstance(packed, Mapping):
        raise ConfigError(
            f"additional_config = {additional_config!r} lacks {KEY!r}: this vLLM engine was not "
            "started by kvrescue; build it with VLLMPolicy"
        )
    if packed["evictor"] is None:
        return None
    evictor = _load(packed["evictor"]).model_validate(packed["options"])
    if not isinstance(evictor, Evictor):
        raise ConfigError(f"evictor = {packed['evictor']!r} is not a kvrescue Evictor")
    return evictor


def _load(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found

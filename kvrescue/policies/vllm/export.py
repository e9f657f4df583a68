"""GGUF checkpoints as folders in Hugging Face layout, because vLLM reads no dequantised GGUF."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from kvrescue.engine import gguf
from kvrescue.engine.checkpoint import Checkpoint

__all__ = ["model_folder"]


def model_folder(checkpoint: Checkpoint) -> str:
    """Where vLLM finds the checkpoint: its own folder or hub name, or a dequantised float32 copy.

    Copies lie in $KVRESCUE_CACHE, else in the user's cache folder, and are made once per file.
    """
    if checkpoint.gguf is None:
        return checkpoint.path
    stamp = repr((checkpoint.path, checkpoint.gguf, checkpoint.stamp)).encode()
    name = f"{Path(checkpoint.gguf).stem}-{hashlib.blake2b(stamp, digest_size=6).hexdigest()}"
    folder = _cache() / name
    if not (folder / "config.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            _write(Path(checkpoint.path, checkpoint.gguf), partial)
            os.replace(partial, folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else another process was faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return str(folder)


def _cache() -> Path:
    if chosen := os.environ.get("KVRESCUE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvrescue"


def _write(file: Path, folder: Path) -> None:
    model, _ = gguf.load_model(file, torch.float32)
    config = model.config.to_dict()
    for field in ("quantization_config", "_name_or_path"):
        config.pop(field, None)
    config |= {"architectures": [type(model).__name__], "dtype": "float32"}
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    gguf.load_tokenizer(file).save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps(config, indent=1, default=str))

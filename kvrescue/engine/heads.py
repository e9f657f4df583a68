"""Reward heads: their weights found in a checkpoint's files, and put into a module."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor, nn

from kvrescue.engine.checkpoint import Checkpoint
from kvrescue.engine.files import tensor_fault
from kvrescue.errors import ModelLoadError

__all__ = ["fill", "head_weights"]


def head_weights(checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    """Tensors under `prefix`, by the rest of their names."""
    folder = Path(checkpoint.path)
    if not checkpoint.local:  # in the cache since the backbone was loaded
        folder = Path(
            snapshot_download(
                checkpoint.path, allow_patterns=["*.safetensors"], local_files_only=True
            )
        )
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        if fault := tensor_fault(file):
            raise ModelLoadError(f"model = {checkpoint.name!r}: {fault}")
        with safe_open(str(file), framework="pt") as handle:
            names = [name for name in handle.keys() if name.startswith(prefix)]  # noqa: SIM118
            weights |= {name.removeprefix(prefix): handle.get_tensor(name) for name in names}
    return weights


def fill(checkpoint: Checkpoint, module: nn.Module, state: dict[str, Tensor], prefix: str) -> None:
    """Load `state` into a module; what is missing, too much or of another shape is an error."""
    own = module.state_dict()
    missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    wrong = sorted(k for k in own.keys() & state.keys() if own[k].shape != state[k].shape)
    where = f"model = {checkpoint.name!r}"
    if missing or unexpected:
        raise ModelLoadError(
            f"{where}: weights under {prefix!r} do not fit: missing {missing[:3]}, "
            f"unexpected {unexpected[:3]}; it needs the head of a two-label reward model"
        )
    if wrong:
        k = wrong[0]
        raise ModelLoadError(
            f"{where}: {prefix}{k} has shape {tuple(state[k].shape)}, expected "
            f"{tuple(own[k].shape)}: not the head of a two-label reward model"
        )
    module.load_state_dict(state)

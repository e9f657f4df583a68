"""One configuration on torch or on vLLM: what carries over, what is refused."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvrescue import presets
from kvrescue.config import RescueConfig, load_config, resolved_yaml
from kvrescue.engines import ENGINES, on_engine
from kvrescue.errors import ConfigError, UnknownNameError
from kvrescue.policies.specs import TorchPolicySpec, VLLMPolicySpec
from kvrescue.registry import missing_package
from kvrescue.selector import StepwiseSelector
from kvrescue.views import Proposer
from tests.core.components import fake_plugins
from tests.core.fakes import FakePolicy, FakeScorer
from tests.core.test_config import example

words = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=8)
positive = st.integers(1, 10**6)
evictors = st.none() | st.fixed_dictionaries(
    {"kind": st.sampled_from(["rkv", "snapkv"]), "budget": positive, "window": st.integers(8, 99)},
    optional={"interval": positive, "protect_prompt": st.booleans()},
)
shared = st.fixed_dictionaries(
    {"model": words},
    optional={
        "evictor": evictors,
        "system": st.none() | words,
        "template": st.sampled_from(["chat", "raw"]),
        "max_context": st.none() | st.integers(2, 10**6),
        "max_live_rows": positive | st.sampled_from([128, 1024]),
        "dtype": st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
    },
)


def configuration(*policies: dict[str, Any]) -> dict[str, Any]:
    return {
        "proposers": {f"p{i}": {"policy": policy} for i, policy in enumerate(policies)},
        "scorer": {"kind": "likelihood", "model": "m"},
    }


@given(st.lists(shared, min_size=1, max_size=3), st.permutations(ENGINES))
def test_there_and_back_is_the_identity(policies: list[dict[str, Any]], engines: Any) -> None:
    here, there = engines
    data = configuration(*({"kind": here, **policy} for policy in policies))
    moved = on_engine(copy.deepcopy(data), there)
    back = on_engine(copy.deepcopy(moved), here)
    assert {p["policy"]["kind"] for p in moved["proposers"].values()} == {there}
    assert back == data
    assert on_engine(copy.deepcopy(data), here) == data
    if all("interval" in (policy.get("evictor") or {"interval": 1}) for policy in policies):
        config = load_config(data)  # vLLM's own interval would come back as an explicit one
        assert load_config(load_config(config, engine=there), engine=here) == config


@pytest.mark.parametrize("name", presets.names())
@pytest.mark.parametrize("engine", ENGINES)
def test_every_preset_has_both_engines(name: str, engine: Any) -> None:
    config, usual = load_config(name, engine=engine), load_config(name)
    assert {part.policy.kind for part in config.proposers.values()} == {engine}
    assert (config.scorer, config.sampling) == (usual.scorer, usual.sampling)
    for part, other in zip(config.proposers.values(), usual.proposers.values(), strict=True):
        assert (part.candidates, part.detectors) == (other.candidates, other.detectors)
    assert load_config(load_config(name, engine="vllm"), engine="torch").scorer == usual.scorer


def policy_of(config: RescueConfig, name: str = "base") -> Any:
    return config.proposers[name].policy


def test_an_explicit_interval_stays_and_an_engine_has_its_own() -> None:
    assert policy_of(load_config("tiny", engine="vllm")).evictor.interval == 1
    assert policy_of(load_config("smollm2", engine="vllm")).evictor.interval == 16
    assert policy_of(load_config("smollm2", engine="torch")).evictor.interval == 1
    loaded = load_config("smollm2")
    assert policy_of(load_config(loaded, engine="vllm")).evictor.interval == 16
    written = yaml.safe_load(resolved_yaml(loaded))  # says everything
    assert policy_of(load_config(written, engine="vllm")).evictor.interval == 1


def test_defaults_are_those_of_the_engine() -> None:
    assert policy_of(load_config("tiny", engine="vllm")).max_live_rows == 128
    resolved = load_config("tiny")
    assert policy_of(resolved).max_live_rows == 1024
    assert policy_of(load_config(resolved, engine="vllm")).max_live_rows == 128
    data = configuration({"kind": "torch", "model": "m", "max_live_rows": 7})
    assert policy_of(load_config(data, engine="vllm"), "p0").max_live_rows == 7


def test_overrides_name_the_options_of_the_chosen_engine() -> None:
    path = "proposers.base.policy"
    config = load_config("tiny", [f"{path}.kv_cache_bytes=4096"], engine="vllm")
    assert policy_of(config).kv_cache_bytes == 4096
    with pytest.raises(UnknownNameError, match="device"):
        load_config("tiny", [f"{path}.device=cpu"], engine="vllm")
    assert policy_of(load_config("tiny", [f"{path}.kind=torch"], engine="vllm")).kind == "torch"


def test_the_caller_keeps_his_data() -> None:
    data = configuration({"kind": "torch", "model": "m"})
    before = copy.deepcopy(data)
    load_config(data, engine="vllm")
    assert data == before


def test_components_in_their_places() -> None:
    spec = TorchPolicySpec(model="m", system="s")
    section = load_config("tiny").proposers["helper"]
    data = {"proposers": {"a": {"policy": spec}, "b": section}, "scorer": "fake"}
    moved = on_engine(data, "vllm")["proposers"]
    assert moved["a"]["policy"] == {"kind": "vllm", "model": "m", "system": "s"}
    assert moved["b"]["policy"] == {"kind": "vllm", "model": "tiny/helper"}
    explicit = VLLMPolicySpec(model="m", options={"seed": 3})
    with pytest.raises(ConfigError, match=r"a\.policy\.options"):
        on_engine({"proposers": {"a": {"policy": explicit}}}, "torch")


@pytest.mark.parametrize(
    ("engine", "option", "value", "why"),
    [
        ("vllm", "device", "cuda:1", "built for"),
        ("vllm", "graphs", True, "captures its own"),
        ("vllm", "share_prefix", True, "prefix caching"),
        ("torch", "candidates", 4, "promises no memory"),
        ("torch", "kv_cache_bytes", 4096, "as it needs it"),
        ("torch", "options", {"tensor_parallel_size": 2}, "vLLM's own"),
    ],
)
def test_an_option_that_the_engine_lacks(engine: Any, option: str, value: Any, why: str) -> None:
    other = "torch" if engine == "vllm" else "vllm"
    faulty = {"kind": other, "model": "m", option: value}
    with pytest.raises(ConfigError) as caught:
        load_config(configuration(faulty, {"kind": other, "model": "m"}, faulty), engine=engine)
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"proposers.p0.policy.{option} = {value!r}: the {engine} engine")
    assert second.startswith(f"proposers.p2.policy.{option}")
    assert why in first
    assert first.endswith("leave it out")


ALONE = [
    (engine, option)
    for engine, here, there in (
        ("vllm", VLLMPolicySpec, TorchPolicySpec),
        ("torch", TorchPolicySpec, VLLMPolicySpec),
    )
    for option in there.model_fields.keys() - here.model_fields.keys()
]


@pytest.mark.parametrize(("engine", "option"), sorted(ALONE))
def test_options_of_the_other_engine_alone_are_refused_with_a_reason(
    engine: str, option: str
) -> None:
    """Also where an override names them, or a configuration of that engine."""
    path, data = f"proposers.p0.policy.{option}", configuration({"kind": engine, "model": "m"})
    with pytest.raises(UnknownNameError) as overridden:
        load_config(data, [f"{path}=true"])
    data["proposers"]["p0"]["policy"][option] = True
    with pytest.raises(UnknownNameError) as configured:
        load_config(data)
    assert str(overridden.value) == str(configured.value)
    assert re.fullmatch(
        rf"{path} = True: the {engine} engine has no such option \(.{{9,}}\); leave it out",
        str(configured.value),
    )


@pytest.mark.parametrize("option", sorted(o for engine, o in ALONE if engine == "vllm"))
def test_what_is_off_asks_nothing_of_the_other_engine(option: str) -> None:
    default = TorchPolicySpec.model_fields[option].default
    off = [default, False] if option in ("graphs", "share_prefix") else [default]
    for value in off:
        data = configuration({"kind": "torch", "model": "m", option: value})
        assert policy_of(load_config(data, engine="vllm"), "p0") == VLLMPolicySpec(model="m")


def test_options_that_say_nothing_are_left_out() -> None:
    data = configuration({"kind": "torch", "model": "m", "device": None})
    assert policy_of(load_config(data, engine="vllm"), "p0") == VLLMPolicySpec(model="m")
    silent = VLLMPolicySpec(model="m", max_live_rows=1024).model_dump()
    data = configuration({"kind": "vllm", **silent})
    assert policy_of(load_config(data, engine="torch"), "p0") == TorchPolicySpec(model="m")


def test_further_kinds_stay_and_alone_are_refused() -> None:
    plugins = fake_plugins()
    data = example()
    with pytest.raises(
        ConfigError, match=r"engine = 'vllm': no proposer runs on torch or vllm.*fake"
    ):
        load_config(data, engine="vllm", plugins=plugins)
    data["proposers"]["more"] = {"policy": {"kind": "torch", "model": "m"}}
    kinds = [
        part.policy.kind
        for part in load_config(data, engine="vllm", plugins=plugins).proposers.values()
    ]
    assert kinds == ["fake", "fake", "vllm"]


def test_an_unknown_engine_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown engine 'vlm'.*did you mean 'vllm'"):
        load_config("tiny", engine="vlm")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({}, "proposers"),
        ({"proposers": []}, "proposers"),
        ({"proposers": {"a": 3}}, "proposers.a"),
        ({"proposers": {"a": {}}}, "policy"),
        ({"proposers": {"a": {"policy": 3}}}, "one policy"),
        ({"proposers": {"a": {"policy": "torch"}}}, "model: missing"),
        ({"proposers": {"a": {"policy": {"kind": "torch", "modle": "m"}}}}, "did you mean 'model'"),
    ],
)
def test_faults_of_the_data_are_told_as_ever(data: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load_config(data, engine="vllm")


class Told(FakePolicy):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def expect(self, candidates: int) -> None:
        self.told.append(candidates)


def test_policies_are_told_how_many_candidates_to_expect() -> None:
    policy, other = Told(), Told()
    proposers = [Proposer(policy, 3, name="a"), Proposer(policy, 8, name="b"), Proposer(other)]
    StepwiseSelector(proposers, FakeScorer())
    assert (policy.told, other.told) == ([3, 8], [1])


def test_a_package_that_breaks_while_it_is_imported_is_not_called_missing() -> None:
    """What transformers says of itself when torchvision is there for another torch."""
    broken = ModuleNotFoundError("Could not import module 'PreTrainedModel'")
    broken.__cause__ = RuntimeError("operator torchvision::nms\ndoes not exist")
    assert str(missing_package("policy 'torch'", broken)) == (
        "policy 'torch' needs packages that cannot be imported: operator torchvision::nms does not "
        "exist; `kvrescue doctor` finds out which"
    )

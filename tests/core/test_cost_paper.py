"""Every value that Appendix D states, against the cost model; and the ones that do not come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvrescue.cost import (
    GIB,
    REPORTED_GAIN,
    CostModel,
    Machine,
    alpha_from_crossover,
    crossover_length,
    eviction_saving,
    shape_from_config,
    shape_of,
)
from kvrescue.evaluation.paper import wall_clock

STATED: dict[str, Any] = json.loads(Path(__file__).with_name("paper_constants.json").read_text())
BASES = ("7B", "72B")


def cost(base: str, **setting: Any) -> CostModel:
    """The paper's example unless said otherwise: N = 8, 4096 tokens, budget 512 + window 128."""
    return CostModel(base=shape_of(base), helper=shape_of("1.5B"), **setting)


def rounded(value: float, stated: float, decimals: int) -> bool:
    return round(value, decimals) == stated


@pytest.mark.parametrize("name", STATED["models"])
def test_table_4(name: str) -> None:
    shape = shape_of(name)
    assert shape.model_dump(include={*STATED["models"][name]}) == STATED["models"][name]
    assert shape.query_width == shape.hidden  # the paper's d


@pytest.mark.parametrize(
    ("name", "heads", "vocabulary", "tied"),
    [("7B", 28, 152064, False), ("72B", 64, 152064, False), ("1.5B", 12, 151936, True)],
)
def test_parameters_of_table_4_follow_from_its_shapes(
    name: str, heads: int, vocabulary: int, tied: bool
) -> None:
    stated = shape_of(name)
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": stated.layers,
        "hidden_size": stated.hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": stated.kv_heads,
        "intermediate_size": stated.ffn,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }
    exact = shape_from_config(config, name)
    assert float(f"{exact.parameters:.3g}") == stated.parameters
    assert exact.model_dump(exclude={"parameters"}) == stated.model_dump(exclude={"parameters"})


@pytest.mark.parametrize("name", STATED["kv_per_token_KiB"])
def test_kv_of_a_token(name: str) -> None:
    assert shape_of(name).kv_bytes_per_token() == STATED["kv_per_token_KiB"][name] * 1024


@pytest.mark.parametrize("base", BASES)
def test_memory(base: str) -> None:
    stated = STATED["memory_GiB_l4096_B512_N8"][base]
    for method in ("full_best_of_n", "kv_rescue"):
        gib = sum(cost(base).kv_bytes(method).values()) / GIB  # type: ignore[arg-type]
        assert rounded(gib, stated[method], 2)
    assert rounded(cost(base).memory_ratio, STATED["memory_ratio_l4096_B512_N8"][base], 1)


def test_saving_crossover_and_alpha() -> None:
    assert eviction_saving(8192, 512) == STATED["evict_saving_l8192_B512"]
    assert rounded(alpha_from_crossover(STATED["crossover_tokens"], 512), STATED["alpha"], 1)
    assert rounded(crossover_length(512, alpha=STATED["alpha"]), STATED["crossover_tokens"], -2)


@pytest.mark.parametrize("base", BASES)
def test_compute_of_a_token(base: str) -> None:
    shape = shape_of(base)
    assert rounded(shape.dense_flops / 1e9, STATED["dense_GFLOP"][base], 1)
    stated = STATED["attn_MFLOP_per_cached_token"][base]
    digits = len(str(stated).partition(".")[2])
    assert rounded(shape.attention_flops(1) / 1e6, stated, digits)


def test_helper_fraction_of_the_large_base() -> None:
    assert rounded(cost("72B").helper_fraction, STATED["helper_fraction_l4096"]["72B"], 3)


def test_helper_fraction_of_the_small_base_needs_a_smaller_alpha() -> None:
    """Stated as 24 %: the measured alpha of 2.9 gives 23.3 %, the least one considered 23.8 %."""
    stated = STATED["helper_fraction_l4096"]["7B"]
    assert rounded(cost("7B").helper_fraction, 0.233, 3)
    assert not rounded(cost("7B").helper_fraction, stated, 2)
    assert rounded(cost("7B", alpha=1.5).helper_fraction, stated, 2)


@pytest.mark.parametrize(
    ("length", "stated", "small", "large"),
    [(4096, "4096", 0.038, 0.027), (12288, "12288", 0.195, 0.145)],
)
def test_the_gain_is_reported_and_not_derivable(
    length: int, stated: str, small: float, large: float
) -> None:
    """No alpha that the paper considers gives the stated gain for either base."""
    assert REPORTED_GAIN[length] == STATED["evicted_gain"][stated]
    assert rounded(cost("7B", length=length).evicted_gain, small, 3)
    assert rounded(cost("72B", length=length).evicted_gain, large, 3)
    for base in BASES:
        for alpha in (1.5, 2.0, 2.5, 2.9, 3.0):
            gain = cost(base, length=length, alpha=alpha).evicted_gain
            assert gain > REPORTED_GAIN[length] + 0.005


@pytest.mark.parametrize(
    ("base", "of_all", "of_dense"), [("7B", 0.097, 0.108), ("72B", 0.069, 0.074)]
)
def test_share_of_attention(base: str, of_all: float, of_dense: float) -> None:
    """Stated as 11 % and 7 % of the forward; 11 % is of the linear layers alone."""
    shape = shape_of(base)
    assert rounded(shape.attention_flops(4096) / shape.decode_flops(4096), of_all, 3)
    assert rounded(shape.attention_flops(4096) / shape.dense_flops, of_dense, 3)


def test_what_ran_out_of_memory_does_not_fit_and_what_ran_fits() -> None:
    """Table 3: the 72B with the 7B reward model on eight GPUs of 40 GiB."""
    model = cost("72B", budget=64, verifier=shape_of("prm-7B"))
    methods = {"full_kv": "full_best_of_n", "best_of_n": "evicted_best_of_n"}
    for row in wall_clock():
        fit = model.fit(
            methods.get(row.method, row.method),  # type: ignore[arg-type]
            Machine(memory_gib=40, gpus=8),
        )
        assert (row.batch <= fit.problems) == (row.problems_per_minute is not None)

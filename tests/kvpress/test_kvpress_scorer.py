"""The adapter's scores are those of the press itself, and what cannot be one is refused."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of fire and pandas, on importing
    import kvpress
from kvpress.utils import get_prerope_key_states, get_prerope_query_states
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from examples.kvpress_scorer import KVPress
from kvrescue import KVSlice, load_config
from kvrescue.errors import ConfigError
from kvrescue.plugins import Plugins
from kvrescue.testing import check_evictor

BUDGET, WINDOW = 12, 4
LENGTH = BUDGET + WINDOW + 3
OF_KEYS_AND_VALUES: list[dict[str, Any]] = [
    {"name": "KnormPress"},
    {"name": "KeyDiffPress"},
    {"name": "LagKVPress", "n_sink": 2, "lag_size": 4},
    {"name": "CURPress", "local_window_size": 4},
    {"name": "StreamingLLMPress", "n_sink": 2},
]
OF_QUERIES: list[dict[str, Any]] = [
    {"name": "TOVAPress"},
    {"name": "SnapKVPress", "window_size": WINDOW, "kernel_size": 3},
]


def evictor(press: Any, **options: Any) -> KVPress:
    return KVPress(**{"budget": BUDGET, "window": WINDOW, "press": press, **options})


def named(press: Any) -> str:
    return str(press["name"])


@pytest.mark.parametrize("press", OF_KEYS_AND_VALUES, ids=named)
@given(seed=st.integers(0, 999), rows=st.integers(1, 3), heads=st.integers(1, 2))
@settings(max_examples=20)
def test_scores_of_keys_and_values(press: dict[str, Any], seed: int, rows: int, heads: int) -> None:
    made = torch.Generator().manual_seed(seed)
    keys, values, queries = torch.randn(3, rows, heads, LENGTH, 8, generator=made)
    options = {key: value for key, value in press.items() if key != "name"}
    ratio = 3 / LENGTH - 1e-9
    direct = getattr(kvpress, press["name"])(compression_ratio=ratio, **options)
    expected = direct.score(None, None, keys.clone(), values.clone(), None, {})
    found = evictor(press).score(KVSlice(keys, queries, values))
    torch.testing.assert_close(found, expected.float())


@pytest.mark.parametrize("press", OF_QUERIES, ids=named)
@given(seed=st.integers(0, 999), rows=st.integers(1, 2), heads=st.sampled_from([1, 2, 4]))
@settings(max_examples=15)
def test_scores_of_recorded_queries(
    press: dict[str, Any], seed: int, rows: int, heads: int
) -> None:
    """The press computes queries and attention from a real module's input; the adapter is given
    the same queries."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=heads, head_dim=8
    )
    module = LlamaAttention(config, layer_idx=0).eval()
    hidden = torch.randn(rows, LENGTH, 32)
    places = LlamaRotaryEmbedding(config)(hidden, torch.arange(LENGTH)[None])
    with torch.no_grad():
        queries, keys = apply_rotary_pos_emb(
            get_prerope_query_states(module, hidden),
            get_prerope_key_states(module, hidden),
            *places,
        )
        values = module.v_proj(hidden).view(rows, LENGTH, heads, 8).transpose(1, 2)
        options = {key: value for key, value in press.items() if key != "name"}
        direct = getattr(kvpress, press["name"])(compression_ratio=0.1, **options)
        expected = direct.score(module, hidden, keys, values, None, {"position_embeddings": places})
        found = evictor(press).score(KVSlice(keys, queries[:, :, -8:], values))
    past = LENGTH - WINDOW
    torch.testing.assert_close(found[..., :past], expected[..., :past].float())


@pytest.mark.parametrize(
    "press",
    [
        press
        for press in OF_KEYS_AND_VALUES + OF_QUERIES
        if press["name"] not in ("CURPress", "LagKVPress")
    ],
    ids=named,
)
def test_laws(press: dict[str, Any]) -> None:
    check_evictor(evictor(press), examples=30)


def test_streaming_llm_keeps_sinks_and_the_newest() -> None:
    keys = torch.randn(1, 1, LENGTH, 8)
    kept = evictor({"name": "StreamingLLMPress", "n_sink": 2}).select(KVSlice(keys, keys, keys))
    assert kept[0, 0].tolist() == [0, 1, *range(LENGTH - (BUDGET + WINDOW - 2), LENGTH)]


@pytest.mark.parametrize(
    ("press", "reason"),
    [
        ("ExpectedAttentionPress", "reads the hidden states"),
        ("LeverageScorePress", "attention module's k_proj"),
        ("NonCausalAttnPress", r"forward pass's arguments \(position_embeddings\)"),
        ("ObservedAttentionPress", "attention of all queries"),
        ("RandomPress", "depend on chance"),
        ({"name": "RandomPress", "seed": 1}, "beside it"),
        ("PyramidKVPress", "more than score"),
        ("ThinKPress", "is no scorer press"),
        ("KnormPres", "did you mean 'KnormPress'"),
        ({"name": "KnormPress", "sinks": 3}, "sinks"),
        ({"name": "KnormPress", "compression_ratio": 0.5}, "`budget`"),
        ({"name": "SnapKVPress", "window_size": 64}, "64"),
        ({"name": "SnapKVPress", "window_size": 10}, "raise it, or lower"),
        (7, "press"),
    ],
    ids=str,
)
def test_what_cannot_score_a_cache_is_refused(press: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        evictor(press)


def test_every_scorer_press_is_either_usable_or_refused() -> None:
    """None of this version's is left that fails otherwise."""
    usable = set()
    for name, value in vars(kvpress).items():
        if isinstance(value, type) and issubclass(value, kvpress.ScorerPress):
            with contextlib.suppress(ConfigError):
                evictor({"name": name, "window_size": WINDOW} if name == "SnapKVPress" else name)
                usable.add(name)
    assert usable == {named(press) for press in OF_KEYS_AND_VALUES + OF_QUERIES}


def test_in_a_configuration() -> None:
    known = Plugins()
    known.load(["examples.kvpress_scorer"])
    setting = "proposers.base.policy.evictor={kind: kvpress, press: KeyDiffPress, budget: 8}"
    config = load_config("tiny", [setting], plugins=known)
    section = config.model_dump(mode="json")["proposers"]["base"]["policy"]["evictor"]
    assert section["press"] == {"name": "KeyDiffPress"}
    with pytest.raises(ConfigError, match=r"proposers\.base\.policy.*hidden states"):
        load_config("tiny", [setting.replace("KeyDiff", "ExpectedAttention")], plugins=known)


def test_on_the_tiny_trio() -> None:
    from kvrescue.policies.torch import TorchPolicy
    from tests.policies.parts import questions, step

    async def run() -> None:
        policy = TorchPolicy("tiny/base", evictor=evictor("KeyDiffPress", budget=8))
        view = await policy.open(questions(1)[0], "base")
        [found] = await view.propose(1, step(20), (), [1], 512)
        await view.commit(found)
        assert view.stats.evictions
        assert view.stats.physical_length == 8 + WINDOW
        await view.close()
        await policy.aclose()

    asyncio.run(run())

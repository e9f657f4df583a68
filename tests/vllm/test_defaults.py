"""What a policy chooses by itself, and draws that do not depend on how vLLM cuts a prompt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvrescue import Rescue
from kvrescue.errors import ConfigError
from kvrescue.evictors import RKV
from kvrescue.policies.vllm.start import default_memory
from tests.policies.parts import BASE, DRAWN, HELPER, questions
from tests.vllm.parts import vllm_policy

TINY = SimpleNamespace(
    num_hidden_layers=3, num_key_value_heads=2, num_attention_heads=4, head_dim=32, hidden_size=128
)
WIDE = SimpleNamespace(num_hidden_layers=30, num_attention_heads=9, hidden_size=576)


@pytest.mark.parametrize(
    ("given", "tokens", "config", "dtype", "expected"),
    [
        (None, 1000, TINY, "float32", 1000 * 2 * 3 * 2 * 32 * 4),
        (None, 1000, TINY, "bfloat16", 1000 * 2 * 3 * 2 * 32 * 2),
        (None, 10, WIDE, "float32", 10 * 2 * 30 * 9 * 64 * 4),
        (None, 10**6, WIDE, "float32", 1 << 30),
        (None, 1000, SimpleNamespace(), "float32", 1 << 30),
        (4096, 10**6, WIDE, "float32", 4096),
    ],
)
def test_memory_on_the_cpu(
    given: int | None, tokens: int, config: SimpleNamespace, dtype: str, expected: int
) -> None:
    assert default_memory(given, tokens, config, dtype) == expected


async def test_blocks_are_promised_for_what_a_proposer_draws() -> None:
    evictor = RKV(budget=16, window=12, interval=1)
    policy = vllm_policy(BASE, evictor, max_context=256)
    sizes = []
    for candidates in (2, 7, 3):
        policy.expect(candidates)
        view = await policy.open(questions(1)[0], "base")
        sizes.append(view.sequence.width)
        await view.close()
    assert sizes == [2, 7, 7]


async def test_draws_do_not_depend_on_how_a_prompt_is_cut() -> None:
    """vLLM samples after every piece and winds the generator back, which a CPU's cannot."""
    found = []
    for options in ({}, {"max_num_batched_tokens": 32}):
        policy = vllm_policy(
            HELPER, None, {"enable_prefix_caching": False, **options}, max_live_rows=8
        )
        view = await policy.open(questions(1)[0], "helper")
        drawn = await view.propose(3, DRAWN, (), [1, 2, 3], 20)
        found.append([candidate.token_ids for candidate in drawn])
        await view.close()
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


def test_errors_of_the_engine_name_their_place_and_the_right_field() -> None:
    place = "proposers.base.policy"
    with pytest.raises(ConfigError) as failed:
        Rescue.from_config("tiny", [f"{place}.options.max_model_len=7"], engine="vllm")
    assert str(failed.value) == (
        f"{place}: options.max_model_len = 7 is set by the policy itself: write `max_context`"
    )

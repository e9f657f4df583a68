"""What benchmarks return that have a table of their own, and what their ratios make of it."""

from __future__ import annotations

import statistics

import pytest

from benchmarks import alpha, decode_profile, engine_speed, vllm_overheads
from benchmarks.ratios import Goal, Size


def test_alpha_is_the_median_of_its_turns() -> None:
    found = alpha.measure(
        evictors=["snapkv", "streaming_llm"], intervals=(1, 4), budgets=(16,), rows=1, turns=3
    )
    sides = [(row["evictor"], row["interval"]) for row in found]
    assert sides == [("snapkv", 1), ("snapkv", 4), ("streaming_llm", 1), ("streaming_llm", 4)]
    for row in found:
        turns = row["turns"]
        assert len(turns) == 3
        assert all(attention > 0 and eviction > 0 for attention, eviction in turns)
        assert row["alpha"] == statistics.median(e / a for a, e in turns)
        assert row["eviction_us"] == pytest.approx(1e6 * statistics.median(e for _, e in turns))


def test_alpha_has_a_goal_for_rkv_after_every_token_alone() -> None:
    goals = {ratio.name: ratio.goal for ratio in alpha.ratios(Size.SMOKE)}
    assert goals == {
        "R-KV 64 + 128, every token: eviction over attention": Goal("at most", 1),
        "R-KV 64 + 128, every 16 tokens: eviction over attention": None,
        "SnapKV 64 + 128, every token: eviction over attention": None,
    }


def test_the_parts_of_a_step_are_the_whole_of_it() -> None:
    """Each is in one group; what is left of a step is what timing them takes."""
    side = "rkv, interval 1"
    found = decode_profile.measure(
        budget=8, window=8, tokens=6, turns=2, model="tiny/base", only=(side,)
    )
    assert list(found) == [side]
    grouped = [part for parts in decode_profile.GROUPS.values() for part in parts]
    assert sorted(grouped) == sorted(found[side]["shares"])
    assert len(found[side]["turns"]) == 2
    for ms, shares in found[side]["turns"]:
        assert ms > 0
        assert min(shares.values()) > 0
        assert sum(shares.values()) == pytest.approx(1, abs=0.1)


def test_every_group_but_the_products_has_the_goal() -> None:
    found = decode_profile.ratios(Size.SMOKE)
    for ratio in found:
        products = decode_profile.PRODUCTS in ratio.name
        assert ratio.goal == (None if products else Goal("at most", decode_profile.GOAL))
    for side in ("full context", "R-KV, every token"):
        groups = {r.name.split(": ")[1].removesuffix(" over the step") for r in found
                  if r.name.startswith(f"{side}: ")}  # fmt: skip
        assert groups <= set(decode_profile.GROUPS)
        assert set(decode_profile.GROUPS) - groups <= {"eviction"}


def test_sides_on_vllm_are_compared_with_who_ran_beside_them() -> None:
    """Ratios within a turn: stock beside R-KV was slower than beside the other."""
    table = vllm_overheads.compare(
        {
            "budget >= length": [
                {"stock": 0.010, "budget >= length": 0.010},
                {"stock": 0.010, "budget >= length": 0.0125},
                {"stock": 0.020, "budget >= length": 0.050},
            ],
            "rkv, interval 1": [{"stock": 0.030, "rkv, interval 1": 0.150}] * 3,
        },
        live=8,
    )
    assert list(table) == ["stock", "budget >= length", "rkv, interval 1"]
    assert table["stock"] == {"ms_per_step": 25.0, "tokens_per_second": 320.0}
    assert table["budget >= length"]["throughput of stock"] == 0.8
    assert table["rkv, interval 1"] == {
        "ms_per_step": 150.0,
        "tokens_per_second": 53.3,
        "throughput of stock": 0.2,
        "added_by_eviction": 3.0,
    }


def test_passes_are_counted_for_the_same_work() -> None:
    by_name = {ratio.name: ratio for ratio in engine_speed.ratios(Size.SMOKE)}
    passes = by_name["lock-step over event-driven, steps uneven, forward passes"]
    assert passes.clock == "none"
    for side in (passes.above, passes.below):
        assert side.turns[0] >= engine_speed.UNEVEN.max_step_tokens / 2

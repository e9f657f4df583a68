"""What `measure()` of alpha and decode_profile returns, and what their ratios make of it."""

from __future__ import annotations

import statistics

import pytest

from benchmarks import alpha, decode_profile
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

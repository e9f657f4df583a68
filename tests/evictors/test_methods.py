"""H2O, StreamingLLM and random eviction: what each keeps."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.errors import ConfigError, EvictorError
from kvrescue.evictors import H2O, KVSlice, RandomEviction, SnapKV, StreamingLLM
from tests.evictors.matrix import make_slice

torch.set_num_threads(1)

seeds = st.integers(0, 2**31)


def test_h2o_scores_are_mass_per_query_that_could_see_the_entry() -> None:
    kv = KVSlice(
        keys=torch.zeros(1, 1, 4, 2),
        queries=torch.zeros(1, 1, 1, 2),
        positions=torch.tensor([[[0, 4, 8, 9]]]),
        attention=torch.tensor([[[5.0, 3.0, 1.0, 0.25]]]),
    )
    scores = H2O(budget=2, window=1).score(kv)
    torch.testing.assert_close(scores, torch.tensor([[[0.5, 0.5, 0.5, 0.25]]]))
    summed = H2O(budget=2, window=1, per_query=False).score(kv)
    torch.testing.assert_close(summed, torch.tensor([[[5.0, 3.0, 1.0, 0.25]]]))


def test_h2o_without_its_inputs_is_a_typed_error() -> None:
    kv = make_slice(1, 14)
    for call in (H2O(budget=4, window=2).select, H2O(budget=4, window=2).score):
        with pytest.raises(EvictorError, match=r"KVSlice\.attention is None"):
            call(dataclasses.replace(kv, attention=None))
    no_positions = dataclasses.replace(kv, positions=None)
    with pytest.raises(EvictorError, match="per_query=False"):
        H2O(budget=4, window=2).select(no_positions)
    H2O(budget=4, window=2, per_query=False).select(no_positions)


def test_h2o_names_nan_attention() -> None:
    kv = make_slice(1, 14)
    assert kv.attention is not None
    attention = kv.attention.clone()
    attention[0, 1, 2] = float("nan")
    with pytest.raises(
        EvictorError, match=r"KVSlice\.attention holds nan at row 0, head 1, entry 2"
    ):
        H2O(budget=4, window=2).select(dataclasses.replace(kv, attention=attention))


@given(
    length=st.integers(1, 20),
    budget=st.integers(1, 8),
    window=st.integers(0, 4),
    sinks=st.integers(0, 4),
)
def test_streaming_keeps_sinks_and_the_newest(
    length: int, budget: int, window: int, sinks: int
) -> None:
    sinks = min(sinks, budget)
    kv = dataclasses.replace(make_slice(1, length, kv_heads=1), positions=None)
    evictor = StreamingLLM(budget=budget, window=window, sinks=sinks)
    newest = budget - sinks + window
    expected = sorted({*range(min(sinks, length)), *range(max(0, length - newest), length)})
    if length <= budget + window:
        expected = list(range(length))
    assert evictor.select(kv).tolist() == [[expected]]


def test_sinks_are_logical_positions_when_known() -> None:
    kv = make_slice(1, 8, kv_heads=1)
    # Positions 0 and 1 are gone: nothing is left to be a sink, so only recency counts.
    kv = dataclasses.replace(kv, positions=torch.tensor([[[2, 5, 6, 7, 8, 9, 10, 11]]]))
    assert StreamingLLM(budget=3, window=2, sinks=2).select(kv).tolist() == [[[3, 4, 5, 6, 7]]]
    assert StreamingLLM(budget=3, window=2, sinks=3).select(kv).tolist() == [[[0, 4, 5, 6, 7]]]


def test_sinks_must_fit_the_budget() -> None:
    with pytest.raises(ConfigError, match="sinks 4 exceed budget 3"):
        StreamingLLM(budget=3)


@given(seed=seeds, drops=st.integers(1, 6))
def test_random_scores_last_for_life(seed: int, drops: int) -> None:
    kv = make_slice(2, 20, seed=seed)
    evictor = RandomEviction(budget=4, window=2, seed=seed)
    scores = evictor.score(kv)
    later = slice(drops, None)
    assert kv.positions is not None
    shorter = dataclasses.replace(
        kv,
        keys=kv.keys[:, :, later],
        values=None,
        attention=None,
        positions=kv.positions[:, :, later],
    )
    assert torch.equal(evictor.score(shorter), scores[:, :, later])


def test_random_scores_look_uniform_and_differ_by_seed_head_and_layer() -> None:
    kv = make_slice(40, 100, kv_heads=2, dim=16)
    kv = dataclasses.replace(kv, positions=torch.arange(100).expand(40, 2, 100))
    scores = RandomEviction(budget=4, seed=1).score(kv)
    assert 0 <= float(scores.min()) < 0.001
    assert 0.999 < float(scores.max()) < 1
    assert abs(float(scores.mean()) - 0.5) < 0.01
    assert abs(float(scores.var()) - 1 / 12) < 0.002
    assert len(scores.unique()) > 0.9 * scores.numel()
    other = RandomEviction(budget=4, seed=2).score(kv)
    for a, b in ((scores, other), (scores[:, 0], scores[:, 1]), (scores[:-1], scores[1:])):
        assert abs(float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])) < 0.05


@given(seed=seeds, window=st.integers(1, 4), group=st.sampled_from([1, 3]))
def test_snapkv_over_all_entries_is_the_models_own_attention(
    seed: int, window: int, group: int
) -> None:
    """reduce="mean", softmax_over="all": the causal attention weights, averaged."""
    length = 12
    kv = make_slice(2, length, group=group, observation=window, seed=seed)
    kv = dataclasses.replace(kv, positions=None)
    evictor = SnapKV(
        budget=4, window=window, kernel_size=1, pooling="avg", reduce="mean", softmax_over="all"
    )
    keys = kv.keys.repeat_interleave(group, 1)
    mask = torch.ones(window, length).tril(diagonal=length - window).bool()
    logits = (kv.queries @ keys.mT / 8**0.5).masked_fill(~mask, float("-inf"))
    weights = logits.softmax(-1).mean(2).view(2, 2, group, length).mean(2)
    past = length - window
    torch.testing.assert_close(evictor.score(kv)[..., :past], weights[..., :past])


def test_max_over_the_group_over_all_entries() -> None:
    """The fourth combination: one softmax of the group's largest causal logits."""
    kv = dataclasses.replace(make_slice(1, 12, kv_heads=1, group=3), positions=None)
    evictor = SnapKV(budget=4, window=2, kernel_size=1, reduce="max", softmax_over="all")
    logits = (kv.queries @ kv.keys.mT / 8**0.5).amax(1, keepdim=True)
    mask = torch.ones(2, 12).tril(diagonal=10).bool()
    expected = logits.masked_fill(~mask, float("-inf")).softmax(-1).mean(2)
    torch.testing.assert_close(evictor.score(kv)[..., :10], expected[..., :10])

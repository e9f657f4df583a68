"""Bugs that users of other libraries reported, as regression tests."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kvrescue.evictors import H2O, RKV, Evictor, KVSlice, SnapKV
from tests.evictors.matrix import SELECTING, make_slice, with_size

torch.set_num_threads(1)


class Constant(Evictor):
    """All scores equal: everything hangs on the partition and the tie rule."""

    kind = "constant"

    def score(self, kv: KVSlice) -> torch.Tensor:
        return torch.ones(kv.keys.shape[:3])


def test_window_survives_when_all_scores_tie() -> None:
    """kvpress issue 226: the window's sentinel score tied and top-k took the smaller index."""
    kept = Constant(budget=4, window=3).select(make_slice(2, 10))
    assert kept.tolist() == [[[0, 1, 2, 3, 7, 8, 9]] * 2] * 2
    one_too_many = Constant(budget=6, window=3).select(make_slice(1, 10))
    assert one_too_many.tolist() == [[[0, 1, 2, 3, 4, 5, 7, 8, 9]] * 2]


@pytest.mark.parametrize("evictor", SELECTING, ids=repr)
def test_window_survives_identical_keys(evictor: Evictor) -> None:
    kv = make_slice(1, 10)
    kv = dataclasses.replace(kv, keys=torch.ones_like(kv.keys), attention=torch.ones(1, 2, 10))
    kept = with_size(evictor, 4, 3).select(kv)
    assert bool((kept[..., -3:] == torch.tensor([7, 8, 9])).all())


def test_half_precision_keys_are_scored_in_float32() -> None:
    """kvpress pull 280: bf16 scores tie for 74 % of entries, so the index decides.

    Entries 2 and 5 differ by one bf16 step; a bf16 softmax cannot tell their weights apart.
    """
    keys = torch.zeros(1, 1, 8, 4)
    keys[0, 0, :, 0] = 1.0
    keys[0, 0, 2, 0] = 1.0 - 2**-8
    keys = keys.to(torch.bfloat16)
    assert keys[0, 0, 2, 0] < keys[0, 0, 1, 0]
    queries = torch.full((1, 1, 1, 4), 0.01, dtype=torch.bfloat16)
    evictor = SnapKV(budget=6, window=1, kernel_size=1)
    kv = KVSlice(keys=keys, queries=queries)
    assert len(evictor.score(kv)[0, 0, :7].to(torch.bfloat16).unique()) == 1
    assert evictor.select(kv).tolist() == [[[0, 1, 3, 4, 5, 6, 7]]]


def test_half_precision_scores_rarely_tie() -> None:
    """The R-KV reference has 4-6 distinct redundancy values per head at 700 bf16 keys."""
    kv = make_slice(1, 300, dim=32, dtype=torch.bfloat16, common=0.3)
    scores = RKV(budget=100, window=8, kernel_size=1).score(kv)[..., :292]
    assert all(len(head.unique()) > 280 for head in scores[0])


def test_each_row_gets_its_own_redundancy() -> None:
    """R-KV reference, `key_states[0]`: row 0's redundancy was applied to the whole batch."""
    kv = make_slice(2, 30, seed=4)
    evictor = RKV(budget=8, window=4, lam=0.0)
    both = evictor.score(kv)
    assert not torch.allclose(both[0], both[1])
    for row in range(2):
        alone = KVSlice(keys=kv.keys[row : row + 1], queries=kv.queries[row : row + 1])
        torch.testing.assert_close(evictor.score(alone)[0], both[row])


def decode_with_h2o(evictor: H2O, prompt: int, steps: int, seed: int) -> list[list[int]]:
    """Positions kept by score after each step of a simulated decode with one random head.

    Attention is content (random keys and queries) plus a pull towards recent entries.
    """
    made = torch.Generator().manual_seed(seed)
    keys = torch.randn(prompt + steps, 8, generator=made)
    queries = torch.randn(prompt + steps, 8, generator=made)
    cached: list[int] = []
    mass: list[float] = []
    history = []
    for token in range(prompt + steps):
        cached, mass = [*cached, token], [*mass, 0.0]
        positions = torch.tensor(cached)
        logits = keys[cached] @ queries[token] / 8**0.5 - 0.1 * (token - positions)
        weights = logits.softmax(0).tolist()
        mass = [old + new for old, new in zip(mass, weights, strict=True)]
        if token < prompt - 1:
            continue  # the prompt is one forward pass
        kv = KVSlice(
            keys=keys[cached][None, None],
            queries=queries[token][None, None, None],
            positions=positions[None, None],
            attention=torch.tensor(mass)[None, None],
        )
        kept = evictor.select(kv)[0, 0].tolist()
        cached, mass = [cached[j] for j in kept], [mass[j] for j in kept]
        history.append(cached[: len(cached) - evictor.window])
    return history


@pytest.mark.parametrize("seed", range(5))
def test_h2o_does_not_freeze_on_the_prompt(seed: int) -> None:
    """VeloxQuant pull 141: newest tokens always lost, the kept set was the prompt for ever."""
    evictor = H2O(budget=8, window=2)
    history = decode_with_h2o(evictor, prompt=14, steps=43, seed=seed)
    for kept in history[2 * evictor.bound :]:
        assert any(position >= 14 for position in kept)


def test_summed_h2o_favours_the_prompt_more() -> None:
    """The control: by summed mass alone (the paper's rule) fewer new tokens get in."""

    def new_tokens(evictor: H2O) -> int:
        runs = (decode_with_h2o(evictor, prompt=14, steps=43, seed=seed) for seed in range(5))
        return sum(position >= 14 for history in runs for position in history[-1])

    mean, summed = (H2O(budget=8, window=2, per_query=flag) for flag in (True, False))
    assert new_tokens(mean) > new_tokens(summed)


@pytest.mark.parametrize("evictor", SELECTING, ids=repr)
def test_half_precision_does_not_overflow(evictor: Evictor) -> None:
    """kvpress pull 251: a 1e5 sentinel key became inf, then NaN, in float16."""
    made = torch.Generator().manual_seed(0)
    keys = (torch.randn(1, 4, 128, 64, generator=made) + 1).to(torch.float16)
    kv = KVSlice(
        keys=keys,
        queries=keys[:, :, -2:] * 100,
        positions=torch.arange(128).expand(1, 4, 128),
        attention=torch.rand(1, 4, 128, generator=made),
    )
    kept = evictor.select(kv)
    assert kept.shape == (1, 4, evictor.bound)
    assert bool(torch.isfinite(evictor.score(kv)).all())

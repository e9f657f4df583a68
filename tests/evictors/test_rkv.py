"""R-KV against plain float64 formulas, and what scaling its inputs must not change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kvrescue.errors import ConfigError, EvictorError
from kvrescue.evictors import RKV, KVSlice, SnapKV
from kvrescue.evictors import tensors as ops
from kvrescue.evictors._redundancy import redundancy
from tests.evictors import reference
from tests.evictors.matrix import make_slice

torch.set_num_threads(1)

seeds = st.integers(0, 2**31)


def mixed_keys(pairs: int, length: int, dim: int, seed: int) -> torch.Tensor:
    """Keys from none to all above the threshold, with copies, a zero key and large norms."""
    made = torch.Generator().manual_seed(seed)
    keys = torch.randn(pairs, length, dim, generator=made)
    keys += torch.linspace(0, 2, pairs)[:, None, None] * torch.randn(pairs, 1, dim, generator=made)
    copies = torch.randint(0, length, (2, max(1, length // 4)), generator=made)
    keys[:, copies[0]] = keys[:, copies[1]] * 1.5
    keys[:, int(torch.randint(0, length, (1,), generator=made))] = 0.0
    return keys


def margin(keys: torch.Tensor, threshold: float) -> float:
    """Distance of the closest pair to the threshold: where it is tiny, rounding decides."""
    unit = torch.nn.functional.normalize(keys.double(), dim=-1)
    return float((unit @ unit.mT - threshold).abs().min())


@given(
    seed=seeds,
    pairs=st.integers(1, 5),
    length=st.sampled_from([1, 2, 7, 8, 9, 17, 41, 75]),
    dim=st.sampled_from([2, 8, 16]),
    threshold=st.sampled_from([None, 0.0, 0.3, 0.5, 0.9, 1.0]),
)
def test_redundancy_equals_the_full_matrix(
    seed: int, pairs: int, length: int, dim: int, threshold: float | None
) -> None:
    keys = mixed_keys(pairs, length, dim, seed)
    assume(threshold is None or margin(keys, threshold) > 1e-6)
    fast = redundancy(keys, threshold)
    slow = np.stack([reference.redundancy(pair, threshold) for pair in keys.double().numpy()])
    np.testing.assert_allclose(fast.numpy(), slow, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("common", [0.0, 0.4, 1.0])
def test_long_caches_take_every_search_path(common: float) -> None:
    """No match at all (blocks to the start), a few late matches, nearly all in the last block."""
    made = torch.Generator().manual_seed(3)
    keys = torch.randn(6, 210, 32, generator=made)
    mean = torch.randn(6, 1, 32, generator=made)
    mean[0] = 0.0  # a head without matches among heads with many
    keys = keys + common * mean
    fast = redundancy(keys, 0.5).numpy()
    slow = np.stack([reference.redundancy(pair, 0.5) for pair in keys.double().numpy()])
    np.testing.assert_allclose(fast, slow, rtol=2e-5)


@pytest.mark.parametrize("common", [0.0, 0.4, 1.0])
def test_no_matrix_of_all_pairs(common: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays linear in the length, even when no key resembles another."""
    made = torch.Generator().manual_seed(3)
    keys = torch.randn(2, 600, 16, generator=made)
    keys += common * torch.randn(2, 1, 16, generator=made)
    largest = 0
    plain = torch.bmm

    def measured(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        product = plain(a, b)
        largest = max(largest, product.numel())
        return product

    monkeypatch.setattr(torch, "bmm", measured)
    redundancy(keys, 0.9)
    assert 0 < largest <= 2 * 600 * 100


@given(
    seed=seeds,
    length=st.integers(2, 40),
    window=st.integers(1, 12),
    group=st.sampled_from([1, 2, 4]),
    kernel_size=st.sampled_from([1, 3, 7, 11]),
    lam=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_score_equals_the_formula(
    seed: int, length: int, window: int, group: int, kernel_size: int, lam: float
) -> None:
    window = min(window, length - 1)
    kv = make_slice(2, length, group=group, observation=max(1, min(window, 4)), seed=seed)
    assume(all(margin(keys, 0.5) > 1e-6 for keys in kv.keys.flatten(0, 1)))
    evictor = RKV(budget=4, window=window, kernel_size=kernel_size, lam=lam)
    scores = evictor.score(kv)
    for row in range(2):
        for head in range(2):
            expected = reference.rkv(
                kv.keys[row, head].double().numpy(),
                kv.queries[row, head * group : (head + 1) * group].double().numpy(),
                window,
                kernel_size,
                lam,
                0.5,
            )
            past = length - window
            np.testing.assert_allclose(scores[row, head, :past], expected, rtol=1e-4, atol=1e-6)
    assert bool((scores[..., length - window :] == 0).all())


@given(seed=seeds, exponent=st.integers(-6, 6))
def test_redundancy_knows_directions_only(seed: int, exponent: int) -> None:
    """Scaling a key by a power of two changes no cosine (and, in floats, no rounding but eps)."""
    keys = mixed_keys(3, 30, 8, seed)
    assume(margin(keys, 0.5) > 1e-6)
    scaled = keys.clone()
    scaled[:, ::2] *= 2.0**exponent
    torch.testing.assert_close(redundancy(scaled, 0.5), redundancy(keys, 0.5), rtol=1e-5, atol=1e-7)


@given(seed=seeds, exponent=st.integers(-4, 4))
def test_scaling_keys_up_and_queries_down_changes_nothing(seed: int, exponent: int) -> None:
    kv = make_slice(2, 24, seed=seed)
    factor = 2.0**exponent
    scaled = dataclasses.replace(kv, keys=kv.keys * factor, queries=kv.queries / factor)
    for evictor in (RKV(budget=8, window=4), SnapKV(budget=8, window=4)):
        torch.testing.assert_close(evictor.score(scaled), evictor.score(kv), rtol=1e-5, atol=1e-7)


@given(seed=seeds)
def test_heads_are_independent(seed: int) -> None:
    kv = make_slice(1, 24, kv_heads=3, group=2, seed=seed)
    evictor = RKV(budget=8, window=4)
    scores = evictor.score(kv)
    for head in range(3):
        alone = KVSlice(
            keys=kv.keys[:, head : head + 1], queries=kv.queries[:, 2 * head : 2 * head + 2]
        )
        torch.testing.assert_close(evictor.score(alone)[:, 0], scores[:, head])


def test_repeating_a_query_changes_nothing() -> None:
    """The mean over queries and the max over the group ignore copies."""
    kv = make_slice(2, 24, observation=3)
    evictor = RKV(budget=8, window=6)
    doubled = dataclasses.replace(kv, queries=kv.queries.repeat(1, 1, 2, 1))
    torch.testing.assert_close(evictor.score(doubled), evictor.score(kv))
    grouped = dataclasses.replace(kv, queries=kv.queries.repeat_interleave(2, 1))
    torch.testing.assert_close(evictor.score(grouped), evictor.score(kv))


def test_the_newest_of_three_copies_is_not_penalised() -> None:
    """Redundancy alone (lam = 0): of a triple the older copies score lower than the newest."""
    made = torch.Generator().manual_seed(5)
    keys = torch.randn(1, 1, 40, 64, generator=made)
    keys[:, :, [10, 20]] = keys[:, :, [30, 30]] + 0.01 * torch.randn(1, 1, 2, 64, generator=made)
    kv = KVSlice(keys=keys, queries=torch.randn(1, 2, 4, 64, generator=made))
    scores = RKV(budget=20, window=4, lam=0.0).score(kv)[0, 0]
    assert scores[30] > scores[20] >= scores[10] - 1e-6
    without = RKV(budget=20, window=4, lam=0.0, similarity_threshold=None).score(kv)[0, 0]
    torch.testing.assert_close(without[30], without[10], rtol=1e-2, atol=0)


def test_protected_prefix_takes_part_in_the_formula() -> None:
    """The prefix is kept by partition; the scores of the others still see it."""
    kv = make_slice(1, 24)
    evictor = RKV(budget=8, window=4)
    protected = dataclasses.replace(kv, prefix=torch.tensor([5]))
    assert torch.equal(evictor.score(protected), evictor.score(kv))
    assert evictor.select(protected).shape[2] == 5 + 8 + 4


def test_more_queries_than_window_are_causal() -> None:
    """An entry newer than a query gets nothing from it (the references cannot reach this)."""
    kv = make_slice(1, 6, kv_heads=1, group=1, observation=4)
    kv = dataclasses.replace(kv, positions=torch.arange(6).expand(1, 1, 6))
    scores = SnapKV(budget=2, window=0, kernel_size=1).score(kv)[0, 0]
    keys, queries = kv.keys[0, 0].double(), kv.queries[0, 0].double()
    logits = queries @ keys.T / 8**0.5
    seen = torch.ones(4, 6).tril(diagonal=2).bool()
    expected = logits.masked_fill(~seen, float("-inf")).softmax(-1).mean(0)
    torch.testing.assert_close(scores, expected.float())
    without = SnapKV(budget=2, window=0, kernel_size=1).score(
        dataclasses.replace(kv, positions=None)
    )
    torch.testing.assert_close(without[0, 0], scores)


@pytest.mark.parametrize("evictor", [RKV(budget=4, window=8), SnapKV(budget=4, window=8)])
@pytest.mark.parametrize("length", [5, 8])
def test_nothing_before_the_window_is_an_error_for_score_only(
    evictor: RKV | SnapKV, length: int
) -> None:
    kv = make_slice(1, length)
    with pytest.raises(EvictorError, match=f"{length} entries, all inside the window of 8"):
        evictor.score(kv)
    assert evictor.select(kv).tolist() == [[list(range(length))] * 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 6}, "kernel_size 6 is even.*use 5 or 7"),
        ({"kernel_size": 0}, "a whole number of at least 1"),
        ({"lam": 1.5}, "a number from 0 to 1"),
        ({"lam": float("nan")}, "lam"),
        ({"similarity_threshold": -0.1}, "a number from 0 to 1"),
        ({"budget": 0}, "greater than 0"),
        ({"lambda": 0.1}, "unknown field 'lambda'; did you mean 'lam'"),
    ],
)
def test_wrong_options_are_validation_errors(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RKV(**{"budget": 4, **options})


def test_even_snapkv_kernels_are_refused_too() -> None:
    with pytest.raises(ConfigError, match="kernel_size 4 is even"):
        SnapKV(budget=4, kernel_size=4)


@pytest.mark.parametrize("kernel_size", [1, 3, 5, 7, 9, 11, 21])
def test_pooling_equals_the_plain_loop(kernel_size: int) -> None:
    values = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    expected = [reference.max_pool(row, kernel_size) for row in values.double().numpy()]
    np.testing.assert_array_equal(
        ops.pool(values, kernel_size, "max"), np.stack(expected).astype("f4")
    )
    padded = np.pad(values.double().numpy(), ((0, 0), (kernel_size // 2,) * 2))
    averaged = [np.convolve(row, np.ones(kernel_size) / kernel_size, "valid") for row in padded]
    np.testing.assert_allclose(ops.pool(values, kernel_size, "avg"), np.stack(averaged), atol=1e-6)

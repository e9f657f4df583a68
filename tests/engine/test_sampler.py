"""Sampling and entropy against naive float64 code written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import softmax

from kvrescue.engine.sampler import entropy, sample, uniforms
from kvrescue.policies.base import Sampling

logit_rows = st.lists(
    st.floats(-20, 20, allow_nan=False, width=32), min_size=1, max_size=40, unique=True
)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0.05, 5.0),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.05, 1.0),
)


def naive_distribution(row: list[float], s: Sampling) -> dict[int, float]:
    """Tokens that may be drawn and their probabilities, most likely first."""
    scaled = np.array(row, dtype=np.float64) / s.temperature
    order = sorted(range(len(row)), key=lambda i: -row[i])
    if s.top_k:
        order = order[: s.top_k]
    mass = softmax(scaled[order])
    kept: dict[int, float] = {}
    for token, p in zip(order, mass, strict=True):
        if kept and sum(kept.values()) >= s.top_p:
            break
        kept[token] = float(p)
    total = sum(kept.values())
    return {token: p / total for token, p in kept.items()}


def draw(row: list[float], s: Sampling, us: list[float]) -> list[int]:
    logits = torch.tensor([row], dtype=torch.float32).expand(len(us), -1)
    return sample(logits, s, torch.tensor(us, dtype=torch.float64)).tolist()


# -- entropy ------------------------------------------------------------------------------------


@given(st.lists(logit_rows, min_size=1, max_size=4))
def test_entropy_is_the_definition(rows: list[list[float]]) -> None:
    for row in rows:
        expected = stats.entropy(softmax(np.array(row, dtype=np.float64)))
        got = float(entropy(torch.tensor([row]))[0])
        assert got == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("size", [2, 310, 49152, 151643])
def test_entropy_of_a_uniform_distribution_is_ln_v(size: int) -> None:
    logits = torch.full((1, size), 3.25)
    assert float(entropy(logits)[0]) == pytest.approx(math.log(size), rel=1e-5)
    assert float(entropy(logits * 1000)[0]) == pytest.approx(math.log(size), rel=1e-5)


def test_entropy_knows_nothing_of_temperature_and_truncation() -> None:
    """Report 30: it is taken from the raw logits, so it has no sampling argument at all; and
    sampling leaves the logits as they were."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    before, copy = entropy(logits), logits.clone()
    sample(logits, Sampling(temperature=0.1, top_k=2, top_p=0.3), torch.rand(3).double())
    assert torch.equal(logits, copy)
    assert torch.equal(entropy(logits), before)


def test_entropy_of_truncated_logits_would_be_another_number() -> None:
    """Report 31: top-20 of a flat distribution has ln 20 = 2.996 nats, below the paper's 7.0."""
    flat = torch.zeros(1, 151643)
    assert float(entropy(flat[:, :20])[0]) == pytest.approx(2.9957, abs=1e-4)
    assert float(entropy(flat)[0]) > 7.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_entropy_of_non_finite_logits_is_nan(bad: float) -> None:
    logits = torch.zeros(3, 8)
    logits[1, 5] = bad
    found = entropy(logits)
    assert math.isnan(float(found[1]))
    assert torch.isfinite(found[[0, 2]]).all()


# -- sampling -----------------------------------------------------------------------------------


@given(logit_rows, st.floats(0, 1, exclude_max=True))
def test_temperature_zero_is_argmax(row: list[float], u: float) -> None:
    s = Sampling(temperature=0.0, top_k=3, top_p=0.5)
    assert draw(row, s, [u]) == [int(np.argmax(row))]


@given(logit_rows, samplings, st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_naive_inverse_cdf(row: list[float], s: Sampling, u: float) -> None:
    allowed = naive_distribution(row, s)
    if s.top_k == 0 and s.top_p == 1.0:  # nothing is sorted: token order
        allowed = dict(sorted(allowed.items()))
    edges = np.cumsum(list(allowed.values()))
    assume(np.abs(edges - u).min() > 1e-5)
    expected = list(allowed)[int(np.searchsorted(edges, u, side="right"))]
    assume(_far_from_top_p(row, s))
    assume(_order_survives_float32(row, s))
    assert draw(row, s, [u]) == [expected]


# Two logits that are the same float32 once the largest is taken from them.
@example([2.0, -1.1920928955078125e-07, 0.0], Sampling(temperature=3.0, top_k=0, top_p=0.5))
@given(logit_rows, samplings)
def test_the_drawn_set_is_exactly_the_naive_one(row: list[float], s: Sampling) -> None:
    assume(_far_from_top_p(row, s))
    assume(_order_survives_float32(row, s))
    allowed = naive_distribution(row, s)
    if s.top_k == 0 and s.top_p == 1.0:
        allowed = dict(sorted(allowed.items()))
    edges = np.concatenate([[0], np.cumsum(list(allowed.values()))])
    middles = (edges[:-1] + edges[1:]) / 2
    wide = [i for i, width in enumerate(np.diff(edges)) if width > 1e-5]
    drawn = draw(row, s, [float(middles[i]) for i in wide])
    assert drawn == [list(allowed)[i] for i in wide]
    assert set(draw(row, s, [0.0, 1 - 2**-53])) <= set(allowed)


def _far_from_top_p(row: list[float], s: Sampling) -> bool:
    """No partial sum so close to top_p that float32 logits decide the set."""
    scaled = np.array(row, dtype=np.float64) / s.temperature
    order = sorted(range(len(row)), key=lambda i: -row[i])[: s.top_k or None]
    sums = np.cumsum(softmax(scaled[order]))
    return s.top_p == 1.0 or bool(np.abs(sums - s.top_p).min() > 1e-5)


@pytest.mark.parametrize("top_k", [0, 4])
@pytest.mark.parametrize("top_p", [0.3, 0.5, 0.51, 1.0])
def test_the_largest_uniform_never_draws_a_token_without_mass(top_k: int, top_p: float) -> None:
    row = [5.0, 5.0, -90.0, -95.0, -99.0]
    for u in (1 - 2**-53, np.nextafter(1, 0), 1 - 2**-30):
        assert draw(row, Sampling(top_k=top_k, top_p=top_p), [u])[0] in (0, 1)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy_not_nan(temperature: float) -> None:
    for top_k, top_p in ((0, 1.0), (20, 0.95), (0, 0.9)):
        s = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        assert draw([1.0, 3.5, -2.0, 3.0], s, [0.0, 0.5, 1 - 2**-53]) == [1, 1, 1]


def test_top_k_beyond_the_vocabulary_is_no_truncation() -> None:
    us = np.linspace(0, 0.999, 50).tolist()
    row = [0.1, 0.7, -0.3]
    wide, off = Sampling(top_k=99, top_p=0.999), Sampling(top_k=0, top_p=0.999)
    assert draw(row, wide, us) == draw(row, off, us)


@pytest.mark.parametrize(
    "s",
    [Sampling(temperature=1.3, top_k=0, top_p=1.0), Sampling(), Sampling(top_k=0, top_p=0.8)],
    ids=["full", "paper", "nucleus"],
)
def test_frequencies_follow_the_distribution(s: Sampling) -> None:
    """Chi-square over 20,000 candidates, each at its first position, seeds fixed."""
    row = np.random.default_rng(5).normal(0, 1.5, 30).astype(np.float32).tolist()
    us = [float(uniforms(seed, 1)[0]) for seed in range(20_000)]
    drawn = np.bincount(draw(row, s, us), minlength=len(row))
    allowed = naive_distribution(row, s)
    assert set(np.flatnonzero(drawn).tolist()) <= set(allowed)
    observed = np.array([drawn[t] for t in allowed])
    expected = np.array(list(allowed.values())) * len(us)
    assert stats.chisquare(observed, expected).pvalue > 1e-3


# -- reproducibility ----------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1), st.integers(0, 64), st.integers(0, 64))
def test_uniforms_depend_on_the_seed_alone(seed: int, short: int, more: int) -> None:
    once, again = uniforms(seed, short + more), uniforms(seed, short)
    assert (once[:short] == again).all()
    assert ((once >= 0) & (once < 1)).all()


def test_uniforms_of_neighbouring_seeds_are_independent() -> None:
    table = np.stack([uniforms(seed, 64) for seed in range(400)])
    assert len(np.unique(table)) == table.size
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.03
    assert stats.kstest(table.ravel(), "uniform").pvalue > 1e-3


@given(st.integers(1, 8), samplings, st.randoms(use_true_random=False))
def test_a_row_is_drawn_alike_in_any_batch(rows: int, s: Sampling, random: object) -> None:
    g = torch.Generator().manual_seed(random.randrange(1000))  # type: ignore[attr-defined]
    logits = torch.randn(rows, 37, generator=g)
    u = torch.rand(rows, generator=g, dtype=torch.float64)
    together = sample(logits, s, u)
    order = torch.randperm(rows, generator=g)
    assert torch.equal(sample(logits[order], s, u[order]), together[order])
    for i in range(rows):
        assert sample(logits[i : i + 1], s, u[i : i + 1]).tolist() == [int(together[i])]
        assert torch.equal(entropy(logits[i : i + 1])[0], entropy(logits)[i])


def test_non_finite_rows_do_not_crash_the_batch() -> None:
    logits = torch.zeros(3, 6)
    logits[0, 2], logits[1, 3] = math.nan, math.inf
    for s in (Sampling(), Sampling(top_k=0, top_p=1.0), Sampling(temperature=0.0)):
        out = sample(logits, s, torch.full((3,), 0.5, dtype=torch.float64))
        assert ((out >= 0) & (out < 6)).all()


def _order_survives_float32(row: list[float], s: Sampling) -> bool:
    """Logits that differ must still differ after the division by the temperature in float32."""
    scaled = np.array(row, dtype=np.float32) / np.float32(s.temperature or 1.0)
    return len(np.unique(scaled)) == len(np.unique(np.array(row)))

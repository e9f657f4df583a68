"""examples/value_norm.py: the laws, a plain reference, and a run."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.value_norm import ValueNorm
from kvrescue import KVSlice, Question
from kvrescue.errors import EvictorError
from kvrescue.evictors import SnapKV
from kvrescue.policies.torch import TorchPolicy
from kvrescue.testing import check_evictor
from tests.policies.parts import questions, step


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_laws(p: float) -> None:
    check_evictor(ValueNorm(budget=12, window=4, p=p))


def test_laws_without_a_window() -> None:
    check_evictor(ValueNorm(budget=6, window=0, observation=1))


def make(seed: int, rows: int, heads: int, group: int, length: int, queries: int) -> KVSlice:
    made = torch.Generator().manual_seed(seed)

    def numbers(n: int, count: int) -> torch.Tensor:
        return torch.randn(rows, n, count, 8, generator=made)

    return KVSlice(numbers(heads, length), numbers(heads * group, queries), numbers(heads, length))


SLICES = st.builds(
    make,
    seed=st.integers(0, 999),
    rows=st.integers(1, 2),
    heads=st.integers(1, 2),
    group=st.integers(1, 3),
    length=st.integers(6, 20),
    queries=st.integers(1, 4),
)


@given(SLICES, st.sampled_from([1.0, 2.0]))
def test_scores_are_attention_times_norm(kv: KVSlice, p: float) -> None:
    """Entry by entry, in double precision."""
    assert kv.values is not None
    rows, heads, length, dim = kv.keys.shape
    group, past = kv.queries.shape[1] // heads, length - 4
    expected = torch.zeros(rows, heads, length, dtype=torch.float64)
    for row in range(rows):
        for head in range(heads):
            seen = kv.queries[row, head * group : (head + 1) * group].double().flatten(0, 1)
            for query in seen:
                logits = [float(query @ kv.keys[row, head, j].double()) for j in range(past)]
                weights = [math.exp(logit / math.sqrt(dim)) for logit in logits]
                for j in range(past):
                    norm = sum(abs(float(v)) ** p for v in kv.values[row, head, j]) ** (1 / p)
                    expected[row, head, j] += weights[j] / sum(weights) * norm / len(seen)
    found = ValueNorm(budget=1, window=4, p=p).score(kv)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-7)


@given(SLICES)
def test_of_values_alike_attention_decides(kv: KVSlice) -> None:
    same = KVSlice(kv.keys, kv.queries, torch.ones_like(kv.keys) / 8)
    attention = SnapKV(budget=1, window=4, kernel_size=1, reduce="mean").score(same)
    torch.testing.assert_close(ValueNorm(budget=1, window=4).score(same), attention)


def test_values_are_required() -> None:
    kv = make(0, 1, 1, 1, 8, 1)
    with pytest.raises(EvictorError, match="values"):
        ValueNorm(budget=1, window=4).score(KVSlice(kv.keys, kv.queries))


def test_on_the_tiny_trio() -> None:
    async def run() -> None:
        policy = TorchPolicy("tiny/base", evictor=ValueNorm(budget=8, window=4))
        question: Question = questions(1)[0]
        view = await policy.open(question, "base")
        [found] = await view.propose(1, step(20), (), [1], 512)
        await view.commit(found)
        stats = view.stats
        assert stats.evictions
        assert stats.physical_length == stats.bound == 12
        await view.close()
        await policy.aclose()

    asyncio.run(run())

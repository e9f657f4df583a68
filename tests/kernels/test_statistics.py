"""Statistics of logits by a kernel equal torch's, and the sampler draws the same tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.engine.sampler import TokenStatistics, sample, token_statistics
from kvrescue.kernels import vocabulary
from kvrescue.sampling import Sampling
from tests.kernels.both import both

EXAMPLES = settings(max_examples=12)


def agree(logits: torch.Tensor) -> TokenStatistics:
    """The kernel's statistics, which equal torch's."""
    expected, found = both(lambda: token_statistics(logits))
    assert torch.equal(found.largest, expected.largest)
    for name in ("normaliser", "entropy"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a.dtype == b.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
    return found


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 3),
    vocab=st.sampled_from([1, 2, 31, 257, 2048, 2049]),
    spread=st.sampled_from([0.0, 1.0, 8.0, 100.0]),
    shift=st.sampled_from([-1e4, 0.0, 300.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
@EXAMPLES
def test_equal_to_torch(
    seed: int, rows: int, vocab: int, spread: float, shift: float, dtype: torch.dtype
) -> None:
    made = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(rows, vocab, generator=made) + shift).to(dtype)
    found = agree(logits)
    exact = torch.distributions.Categorical(logits=logits.double()).entropy().float()
    torch.testing.assert_close(found.entropy, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vocab", [vocabulary.SPAN, vocabulary.SPAN + 1, 2 * vocabulary.SPAN + 700])
def test_more_than_one_part(vocab: int) -> None:
    """Logits that rise, so that every part has to be rescaled."""
    logits = torch.linspace(-20, 20, vocab).repeat(2, 1)
    logits[1] = logits[1].flip(0)
    agree(logits)


def test_a_row_does_not_depend_on_the_others() -> None:
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(3))
    together, alone = agree(logits), agree(logits[2:3])
    assert torch.equal(together.entropy[2:3], alone.entropy)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 2047, 2048, 2999])
def test_what_is_not_finite_is_nan(value: float, place: int) -> None:
    logits = torch.randn(2, 3000, generator=torch.Generator().manual_seed(4))
    logits[1, place] = value
    for found in both(lambda: token_statistics(logits)):
        assert torch.isfinite(found.entropy[0])
        assert torch.isnan(found.entropy[1])


def test_strided_logits() -> None:
    logits = torch.randn(40, 3, generator=torch.Generator().manual_seed(5)).T
    agree(logits)
    agree(logits.contiguous()[:, :33])


@given(
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
    top_p=st.sampled_from([0.9, 1.0]),
    top_k=st.sampled_from([0, 5]),
)
@EXAMPLES
def test_the_same_tokens_are_drawn(seed: int, temperature: float, top_p: float, top_k: int) -> None:
    """The reproducibility law: with the kernel's maximum, bit for bit as with torch's."""
    made = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 600, generator=made)
    uniform = torch.rand(4, generator=made, dtype=torch.float64)
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    expected, found = both(
        lambda: sample(logits, sampling, uniform, token_statistics(logits).largest)
    )
    assert torch.equal(expected, found)
    assert torch.equal(expected, sample(logits, sampling, uniform))

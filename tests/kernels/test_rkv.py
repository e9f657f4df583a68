"""R-KV's scores by kernels equal those of torch, which equal the reference code's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kvrescue.evictors import RKV, KVSlice
from kvrescue.kernels import rkv
from tests.evictors.test_goldens import FOLDER, build, load
from tests.evictors.test_rkv import margin, mixed_keys
from tests.kernels.both import both

EXAMPLES = settings(max_examples=12)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def agree(evictor: RKV, kv: KVSlice) -> torch.Tensor:
    """The kernels' scores, which equal torch's."""
    expected, found = both(lambda: evictor.score(kv))
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-7)
    return found


@pytest.mark.parametrize(
    "path", [FOLDER / f"{n}.npz" for n in ("dup_of_token0_g4_d32_n80", "edge_len_vs_budget")]
)
def test_goldens(path: Path) -> None:
    """One KV head of a file; that of the reference's scores."""
    file, facts = load(path)
    keys, queries = torch.tensor(file["keys"]), torch.tensor(file["queries"])
    compared = 0
    for number, run in enumerate(facts["runs"]):
        if run["evictor"]["kind"] != "rkv" or f"r{number}_scores" not in file or compared == 2:
            continue
        evictor: Any = build(run["evictor"])
        head = KVSlice(keys[None, :1], queries[None, : len(queries) // len(keys)])
        expected = torch.tensor(file[f"r{number}_scores"])[:1]
        found = agree(evictor, head)[0, :, : expected.shape[1]]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-7)
        compared += 1
    assert compared


@given(
    seed=st.integers(0, 2**31),
    length=st.integers(2, 75),
    window=st.integers(0, 12),
    observed=st.sampled_from([1, 3, 8, 17]),
    group=st.sampled_from([1, 2, 3]),
    dim=st.sampled_from([2, 8, 20]),
    kernel_size=st.sampled_from([1, 3, 7]),
    threshold=st.sampled_from([None, 0.0, 0.5, 0.9]),
    lam=st.sampled_from([0.0, 0.1, 1.0]),
    dtype=st.sampled_from(DTYPES),
    with_positions=st.booleans(),
)
@example(1, 65, 8, 8, 2, 20, 7, 0.5, 0.1, torch.bfloat16, False)
@example(3, 33, 4, 4, 1, 40, 1, 0.5, 0.1, torch.float32, False)  # a key in two parts
@example(4, 33, 4, 4, 1, 70, 1, 0.5, 0.1, torch.float16, False)
@example(2, 33, 1, 17, 1, 8, 3, 0.5, 0.1, torch.float32, True)  # a causal mask
@EXAMPLES
def test_scores_equal_torch(
    seed: int,
    length: int,
    window: int,
    observed: int,
    group: int,
    dim: int,
    kernel_size: int,
    threshold: float | None,
    lam: float,
    dtype: torch.dtype,
    with_positions: bool,
) -> None:
    window, observed = min(window, length - 1), min(observed, length)
    made = torch.Generator().manual_seed(seed)
    keys = mixed_keys(2, length, dim, seed).to(dtype)
    assume(threshold is None or margin(keys.float(), threshold) > 1e-6)
    queries = torch.randn(1, 2 * group, observed, dim, generator=made).to(dtype)
    steps = torch.randint(1, 4, (1, 2, length), generator=made).cumsum(2)
    evictor = RKV(
        budget=1,
        window=window,
        observation=observed,
        kernel_size=kernel_size,
        lam=lam,
        similarity_threshold=threshold,
    )
    agree(evictor, KVSlice(keys[None], queries, positions=steps if with_positions else None))


def test_any_strides() -> None:
    """Keys of a cache that holds more: every axis has a stride of its own."""
    cache = torch.randn(3, 50, 2, 32)
    keys = cache[1:2, 5:45, :, ::2].transpose(1, 2)
    queries = torch.randn(1, 9, 4, 16).transpose(1, 2)
    evictor = RKV(budget=4, window=8)
    assert torch.equal(
        agree(evictor, KVSlice(keys, queries)),
        agree(evictor, KVSlice(keys.contiguous(), queries.contiguous())),
    )


def test_rows_of_different_lengths() -> None:
    """Each row as if it were alone; what lies behind its end does not count."""
    made = torch.Generator().manual_seed(5)
    keys = torch.randn(3, 1, 40, 8, generator=made)
    keys[0, :, 35:] = float("nan")
    queries = torch.randn(3, 2, 4, 8, generator=made)
    evictor = RKV(budget=4, window=6)
    options = {"window": 6, "kernel_size": 7, "lam": 0.1, "threshold": 0.5}
    lengths = [35, 40, 6]
    found = rkv.scores(keys, queries, None, lengths=torch.tensor(lengths), **options)
    for row, length in enumerate(lengths[:2]):
        alone = KVSlice(keys[row : row + 1, :, :length], queries[row : row + 1])
        torch.testing.assert_close(found[row : row + 1, :, :length], evictor.score(alone))
        assert not found[row, :, length:].any()
    assert not found[2].any()  # all of it is window


def test_selections_are_the_same() -> None:
    """Through `select`, with rows of different lengths and a protected prefix."""
    made = torch.Generator().manual_seed(6)
    keys = torch.randn(2, 1, 40, 8, generator=made)
    kv = KVSlice(
        keys,
        torch.randn(2, 2, 4, 8, generator=made),
        lengths=torch.tensor([40, 33]),
        prefix=torch.tensor([2, 0]),
    )
    expected, found = both(lambda: RKV(budget=10, window=6).select(kv))
    assert torch.equal(expected, found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("where", ["keys", "queries"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(where: str, value: float) -> None:
    """So that `select` finds it."""
    keys, queries = torch.randn(1, 1, 20, 8), torch.randn(1, 2, 4, 8)
    {"keys": keys, "queries": queries}[where][0, 0, 2, 3] = value
    for scores in both(lambda: RKV(budget=4, window=6).score(KVSlice(keys, queries))):
        assert not torch.isfinite(scores[..., :14]).any()


def test_no_rows() -> None:
    kv = KVSlice(torch.zeros(0, 2, 20, 8), torch.zeros(0, 2, 4, 8))
    expected, found = both(lambda: RKV(budget=4, window=6).score(kv))
    assert expected.shape == found.shape == (0, 2, 20)

"""Laws of `Evictor.select` for every evictor, and its errors."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.errors import ConfigError, EvictorError
from kvrescue.evictors import Evictor, KVSlice, NoEviction
from kvrescue.testing import check_evictor
from tests.evictors.matrix import EVICTORS, SELECTING, make_slice, with_size
from tests.evictors.reference import kept as kept_by_hand

torch.set_num_threads(1)

seeds = st.integers(0, 2**31)


class Given(Evictor):
    """Scores come in through `values[..., 0]`, so a test can dictate them."""

    kind = "given"
    needs_values = True

    def score(self, kv: KVSlice) -> torch.Tensor:
        assert kv.lengths is None
        assert kv.query_counts is None
        assert kv.values is not None
        return kv.values[..., 0]


def dictate(scores: torch.Tensor, **fields: Any) -> KVSlice:
    """A slice for `Given` with `scores` [rows, heads, n]."""
    kv = make_slice(scores.shape[0], scores.shape[2], kv_heads=scores.shape[1])
    return dataclasses.replace(kv, values=scores.unsqueeze(-1), **fields)


@pytest.mark.parametrize(("budget", "window"), [(1, 0), (2, 5), (8, 1)])
@pytest.mark.parametrize("evictor", EVICTORS, ids=repr)
def test_laws_at_any_size(evictor: Evictor, budget: int, window: int) -> None:
    check_evictor(with_size(evictor, budget, window), examples=15)


@pytest.mark.parametrize("evictor", SELECTING, ids=repr)
@given(seed=seeds, extra=st.integers(1, 12))
def test_one_at_a_time_stays_within_the_bound(evictor: Evictor, seed: int, extra: int) -> None:
    """Decoding: append, select, gather; what was dropped never comes back, order stays temporal."""
    total = evictor.bound + extra
    everything = make_slice(1, total, seed=seed)
    assert everything.attention is not None
    heads = everything.keys.shape[1]
    cached = torch.arange(evictor.bound).expand(1, heads, -1)
    for token in range(evictor.bound, total):
        cached = torch.cat((cached, torch.full((1, heads, 1), token)), -1)
        wide = cached.unsqueeze(-1).expand(-1, -1, -1, everything.keys.shape[3])
        kv = KVSlice(
            keys=everything.keys.gather(2, wide),
            queries=everything.queries,
            positions=cached,
            attention=everything.attention.gather(2, cached),
        )
        cached = cached.gather(2, evictor.select(kv))
        assert cached.shape[2] == evictor.bound
        assert bool((cached.diff(dim=-1) > 0).all())


@given(data=st.data())
def test_kept_set_equals_the_plain_rule_with_ties_to_the_earlier(data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, 6))
    window = data.draw(st.integers(0, 4))
    prefix = data.draw(st.integers(0, 3))
    length = data.draw(st.integers(1, 18).map(lambda n: n + prefix))
    levels = st.sampled_from([-1e30, -1.0, -0.0, 0.0, 0.5, 2.0])
    scores = data.draw(st.lists(levels, min_size=length, max_size=length))
    evictor = Given(budget=budget, window=window)
    kv = dictate(torch.tensor([[scores]]), prefix=torch.tensor([prefix]))
    expected = (
        list(range(length))
        if length <= prefix + budget + window
        else kept_by_hand(scores, budget, window, prefix)
    )
    assert evictor.select(kv).tolist() == [[expected]]


def test_equal_rows_make_one_dense_call_however_they_are_described() -> None:
    calls: list[int] = []

    class Counting(Given):
        def score(self, kv: KVSlice) -> torch.Tensor:
            calls.append(kv.keys.shape[0])
            return super().score(kv)

    scores = torch.rand(5, 2, 12, generator=torch.Generator().manual_seed(0))
    evictor = Counting(budget=4, window=2)
    plain = evictor.select(dictate(scores))
    described = evictor.select(
        dictate(scores, lengths=torch.full((5,), 12), prefix=torch.zeros(5, dtype=torch.int64))
    )
    assert calls == [5, 5]
    assert torch.equal(plain, described)


def test_protected_entries_may_carry_any_score() -> None:
    scores = torch.zeros(1, 1, 10)
    scores[..., :2] = float("-inf")
    scores[..., -3:] = float("nan")
    scores[..., 4] = 1.0
    kv = dictate(scores, prefix=torch.tensor([2]))
    assert Given(budget=2, window=3).select(kv).tolist() == [[[0, 1, 2, 4, 7, 8, 9]]]


@pytest.mark.parametrize("evictor", SELECTING, ids=repr)
def test_keys_of_a_training_graph_are_fine(evictor: Evictor) -> None:
    kv = make_slice(1, 14)
    kept = evictor.select(dataclasses.replace(kv, keys=kv.keys.clone().requires_grad_()))
    assert torch.equal(kept, evictor.select(kv))


def test_no_rows_give_an_empty_selection() -> None:
    assert Given(budget=4, window=2).select(dictate(torch.zeros(0, 2, 12))).shape == (0, 2, 6)


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("rank", {"keys": torch.zeros(2, 12, 8)}, r"KVSlice\.keys has shape \[2, 12, 8\]"),
    ("query rank", {"queries": torch.zeros(4, 2, 8)}, r"KVSlice\.queries has shape \[4, 2, 8\]"),
    ("integer keys", {"keys": torch.zeros(2, 2, 12, 8, dtype=torch.int8)}, "dequantise"),
    ("query heads", {"queries": torch.zeros(2, 3, 2, 8)}, "3 query heads for 2 KV heads"),
    ("query dim", {"queries": torch.zeros(2, 4, 2, 6)}, "rows and head_dim must agree"),
    ("no query", {"queries": torch.zeros(2, 4, 0, 8)}, "observation axis = 0"),
    ("values", {"values": torch.zeros(2, 2, 11, 8)}, r"KVSlice\.values has shape"),
    ("positions", {"positions": torch.zeros(2, 12)}, r"KVSlice\.positions has shape"),
    ("no values", {"values": None}, r"KVSlice\.values is None"),
    ("long", {"lengths": torch.tensor([12, 13])}, r"lengths\[1\] = 13 .* 0\.\.12"),
    ("negative", {"lengths": torch.tensor([-1, 12])}, r"lengths\[0\] = -1"),
    ("float lengths", {"lengths": torch.tensor([12.0, 12.0])}, "give integers"),
    ("short lengths", {"lengths": torch.tensor([12])}, r"\[rows\] = \[2\]"),
    ("prefix", {"prefix": torch.tensor([0, 13])}, r"prefix\[1\] = 13"),
    (
        "prefix beyond length",
        {"prefix": torch.tensor([0, 9]), "lengths": torch.tensor([12, 8])},
        r"prefix\[1\] = 9 exceeds the row's length 8",
    ),
    ("no query in row", {"query_counts": torch.tensor([0, 1])}, r"query_counts\[0\] = 0"),
]


@pytest.mark.parametrize(
    ("change", "message"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN]
)
def test_malformed_slices_are_typed_errors(change: dict[str, Any], message: str) -> None:
    kv = dataclasses.replace(make_slice(2, 12), **change)
    with pytest.raises(EvictorError, match=message) as caught:
        Given(budget=4, window=2).select(kv)
    assert "'given'" in str(caught.value)
    assert caught.value.exit_code == 12


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_scores_are_refused(bad: float) -> None:
    scores = torch.zeros(2, 2, 12)
    scores[1, 0, 3] = bad
    with pytest.raises(EvictorError, match=r"row 1, (KV )?head 0, entry 3"):
        Given(budget=4, window=2).select(dictate(scores))


@pytest.mark.parametrize("field", ["keys", "queries"])
@pytest.mark.parametrize("evictor", [e for e in SELECTING if e.kind in {"rkv", "snapkv"}], ids=repr)
def test_nan_input_is_named_with_its_place(evictor: Evictor, field: str) -> None:
    kv = make_slice(2, 14)
    broken = getattr(kv, field).clone()
    broken[1, 1, 1, 2] = float("nan")
    with pytest.raises(
        EvictorError, match=rf"KVSlice\.{field} holds nan at row 1, head 1, entry 1"
    ):
        evictor.select(dataclasses.replace(kv, **{field: broken}))


@pytest.mark.parametrize("result", [torch.zeros(2, 2, 11), torch.zeros(2, 12), None, 1.0])
def test_scores_of_the_wrong_shape_are_refused(result: Any) -> None:
    class Wrong(Evictor):
        kind = "wrong"

        def score(self, kv: KVSlice) -> torch.Tensor:
            return result  # type: ignore[no-any-return]

    with pytest.raises(EvictorError, match=r"'wrong'.*expected .* = \[2, 2, 12\]"):
        Wrong(budget=4, window=2).select(make_slice(2, 12))


def test_integer_scores_are_refused() -> None:
    class Whole(Evictor):
        def score(self, kv: KVSlice) -> torch.Tensor:
            return torch.zeros(kv.keys.shape[:3], dtype=torch.int64)

    with pytest.raises(EvictorError, match=r"'Whole'.*int64"):
        Whole(budget=4, window=2).select(make_slice(1, 12))


@pytest.mark.parametrize("raised", [RuntimeError("boom"), EvictorError("own words")])
def test_an_evictor_that_fails_is_named(raised: Exception) -> None:
    class Broken(Evictor):
        kind = "broken"

        def score(self, kv: KVSlice) -> torch.Tensor:
            raise raised

    with pytest.raises(EvictorError) as caught:
        Broken(budget=4, window=2).select(make_slice(1, 12))
    if isinstance(raised, EvictorError):
        assert caught.value is raised
    else:
        assert str(caught.value) == "evictor 'broken' failed: RuntimeError: boom"
        assert caught.value.__cause__ is raised


def test_select_cannot_be_overridden() -> None:
    with pytest.raises(EvictorError, match="implement `score` only"):

        class Sly(Evictor):
            def score(self, kv: KVSlice) -> torch.Tensor:
                return kv.keys[..., 0]

            def select(self, kv: KVSlice) -> torch.Tensor:  # type: ignore[misc]
                return kv.keys[..., 0]


def test_importing_the_package_does_not_import_torch() -> None:
    code = (
        "import sys; from kvrescue.evictors import RKV, NoEviction, KVSlice; RKV(budget=4);"
        "NoEviction(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_eviction_takes_no_budget() -> None:
    assert not NoEviction().bounded
    with pytest.raises(ConfigError, match="keeps everything"):
        NoEviction(budget=64)

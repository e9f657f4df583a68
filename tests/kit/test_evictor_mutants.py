"""Wrong evictors: each is caught by the law it breaks."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import torch
from pydantic import ConfigDict
from torch import Tensor

from kvrescue.errors import ConfigError
from kvrescue.evictors import RKV, Evictor, KVSlice
from kvrescue.evictors._rkv_tracker import RKVTracker
from kvrescue.evictors.tracking import ScoreTracker, TrackedCache
from kvrescue.testing import check_evictor
from kvrescue.testing.evictors import KVCase
from tests.kit.mutants import caught

torch.set_num_threads(1)


class Norms(Evictor):
    """A correct evictor, which the mutants spoil: the largest keys stay."""

    kind: ClassVar[str] = "norms"

    def score(self, kv: KVSlice) -> Tensor:
        return kv.keys.float().norm(dim=-1)


def unchecked(select):
    """A class whose final method is replaced behind the base class's back."""

    class Sly(Norms):
        kind: ClassVar[str] = "sly"

    Sly.select = select  # type: ignore[method-assign]
    return Sly(budget=8, window=4)


def window_by_score(self: Evictor, kv: KVSlice) -> Tensor:
    """Protects the window by adding to its scores; equal scores are cut anywhere."""
    kept = super(type(self), self).select(kv)
    if kv.lengths is None and kv.prefix is None and kv.keys.shape[2] > self.bound:
        scores = self.score(kv)
        if bool((scores == scores[..., :1]).all()):
            return torch.arange(self.bound).repeat(*scores.shape[:2], 1)
    return kept


def keeps_one_less(self: Evictor, kv: KVSlice) -> Tensor:
    kept = super(type(self), self).select(kv)
    full = kept.shape[2] >= self.bound and kv.lengths is None and kv.prefix is None
    return kept[..., 1:] if full else kept


def unsorted(self: Evictor, kv: KVSlice) -> Tensor:
    return super(type(self), self).select(kv).flip(-1)


def ties_to_the_later(self: Evictor, kv: KVSlice) -> Tensor:
    kept = super(type(self), self).select(kv)
    length = kv.keys.shape[2]
    if kv.lengths is None and kv.prefix is None and length > self.bound:
        scores = self.score(kv)[..., : length - self.window]
        order = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices
        best = order[..., : self.budget]
        best = scores.shape[-1] - 1 - best
        newest = torch.arange(length - self.window, length).expand(*best.shape[:2], -1)
        return torch.cat((best, newest), -1).sort(-1).values
    return kept


def forgets_the_prompt(self: Evictor, kv: KVSlice) -> Tensor:
    if kv.prefix is None or kv.lengths is not None:
        return super(type(self), self).select(kv)
    wider = Norms(budget=self.budget + int(kv.prefix[0]), window=self.window)
    return wider.select(dataclasses.replace(kv, prefix=None))


SELECTS = {
    "window": window_by_score,
    "bound": keeps_one_less,
    "kept-indices": unsorted,
    "best-stay": ties_to_the_later,
    "prompt": forgets_the_prompt,
}


@pytest.mark.parametrize("law", SELECTS)
def test_a_select_that_is_wrong(law: str) -> None:
    found = caught(lambda: check_evictor(unchecked(SELECTS[law])), law)
    assert isinstance(found.case, KVCase)
    found.case.slice()


def test_the_window_is_lost_on_the_smallest_tie() -> None:
    found = caught(lambda: check_evictor(unchecked(window_by_score)), "window")
    case = found.case
    assert isinstance(case, KVCase)
    assert case.rows == ((13, 0, 1),)
    assert case.content in {"equal", "zero"}
    assert "keeps 0-11" in found.seen
    assert "9 to 12" in found.expected


class FirstRow(Norms):
    """Row 0's redundancy applied to all rows."""

    def score(self, kv: KVSlice) -> Tensor:
        keys = torch.nn.functional.normalize(kv.keys.float(), dim=-1)
        return -(keys[0] @ keys[0].mT).mean(-1).expand(kv.keys.shape[:3]).clone()


class BatchMean(Norms):
    """Scores that depend on the batch."""

    def score(self, kv: KVSlice) -> Tensor:
        scores = super().score(kv)
        return scores - scores.mean(0, keepdim=True) if len(scores) > 1 else scores


class Half(Norms):
    """Scores in the cache's dtype."""

    def score(self, kv: KVSlice) -> Tensor:
        return kv.keys.norm(dim=-1)


class HalfInside(Norms):
    """Computes in the cache's dtype and converts at the end."""

    def score(self, kv: KVSlice) -> Tensor:
        return (kv.keys * kv.keys).sum(-1).float()


class Writes(Norms):
    def score(self, kv: KVSlice) -> Tensor:
        return kv.keys.abs_().float().sum(-1)


class Draws(Norms):
    def score(self, kv: KVSlice) -> Tensor:
        return torch.rand(kv.keys.shape[:3])


class Strides(Norms):
    """Reads the memory that a contiguous slice would have."""

    def score(self, kv: KVSlice) -> Tensor:
        shape = kv.keys.shape
        return kv.keys.float().norm(dim=-1) if kv.keys.is_contiguous() else torch.zeros(shape[:3])


class Views(Norms):
    def score(self, kv: KVSlice) -> Tensor:
        return kv.keys.view(-1, kv.keys.shape[3]).float().norm(dim=-1).view(kv.keys.shape[:3])


class Infinite(Norms):
    """0 / 0 where a key is zero."""

    def score(self, kv: KVSlice) -> Tensor:
        keys = kv.keys.float()
        return (keys / keys.norm(dim=-1, keepdim=True)).sum(-1)


class Flat(Norms):
    def score(self, kv: KVSlice) -> Tensor:
        return super().score(kv)[:, :1]


class Fails(Norms):
    """Needs two queries."""

    def score(self, kv: KVSlice) -> Tensor:
        return super().score(kv) + kv.queries[:, 0, 1, 0].float()[:, None, None]


class Undeclared(Norms):
    def score(self, kv: KVSlice) -> Tensor:
        return kv.values.float().norm(dim=-1)  # type: ignore[union-attr]


class Passes(Norms):
    """Hands over what it did not ask for."""

    def score(self, kv: KVSlice) -> Tensor:
        return kv.attention  # type: ignore[return-value]


class Keyless(Norms):
    needs_keys: ClassVar[bool] = False


class Nameless(Norms):
    kind: ClassVar[str] = ""


class Thawed(Norms):
    model_config = ConfigDict(frozen=False)
    __hash__ = object.__hash__


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        (FirstRow, "row-independence"),
        (BatchMean, "row-independence"),
        (Half, "float32-scores"),
        (HalfInside, "precision"),
        (Writes, "read-only"),
        (Draws, "deterministic"),
        (Strides, "memory-layout"),
        (Views, "memory-layout"),
        (Infinite, "float32-scores"),
        (Flat, "float32-scores"),
        (Fails, "runs"),
        (Undeclared, "declared-needs"),
        (Passes, "declared-needs"),
        (Keyless, "declared-needs"),
        (Nameless, "options"),
        (Thawed, "options"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_score_that_is_wrong(mutant: type[Evictor], law: str) -> None:
    caught(lambda: check_evictor(mutant(budget=8, window=4)), law)


FORMS = {
    "a list": (lambda scores: scores.tolist(), "torch.Tensor"),
    "a ndarray": (lambda scores: scores.numpy(), "torch.Tensor"),
    "a str": (lambda scores: "high", "torch.Tensor"),
    "None": (lambda scores: None, "return the scores"),
    "float32 [1, ": (lambda scores: scores.mean(1), "one number for every row"),
    "int64": (lambda scores: scores.long(), "compute in float32"),
    "bfloat16": (lambda scores: scores.bfloat16(), "compute in float32"),
}


@pytest.mark.parametrize("seen", FORMS)
def test_what_is_no_tensor_of_scores(seen: str) -> None:
    change, advice = FORMS[seen]

    class Formless(Norms):
        def score(self, kv: KVSlice) -> Tensor:
            return change(super().score(kv))

    found = caught(
        lambda: check_evictor(Formless(budget=8, window=4), examples=4), "float32-scores"
    )
    assert found.seen.startswith(seen)
    assert advice in found.expected


def test_a_coroutine_is_no_tensor() -> None:
    class Awaits(Norms):
        async def score(self, kv: KVSlice) -> Tensor:  # type: ignore[override]
            return kv.keys

    found = caught(lambda: check_evictor(Awaits(budget=8, window=4), examples=4), "float32-scores")
    assert "make it `def score`" in found.expected


@pytest.mark.parametrize("change", [Tensor.double, Tensor.requires_grad_])
def test_float64_and_gradients_are_no_breach(change) -> None:
    class Other(Norms):
        def score(self, kv: KVSlice) -> Tensor:
            return change(super().score(kv))

    check_evictor(Other(budget=8, window=4), examples=10)


class Careless(RKVTracker):
    """Does not take out of the sums what has left."""

    def drop(self, cache: TrackedCache, slots: Tensor, renamed: Tensor) -> None:
        total = cache.state["total"].clone()
        super().drop(cache, slots, renamed)
        cache.state["total"][:] = total


class Stale(RKVTracker):
    """Does not follow the entries that move."""

    def drop(self, cache: TrackedCache, slots: Tensor, renamed: Tensor) -> None:
        match = cache.state["match"].clone()
        super().drop(cache, slots, renamed)
        cache.state["match"][:] = match


@pytest.mark.parametrize("tracker", [Careless, Stale])
def test_a_tracker_that_is_wrong(tracker: type[RKVTracker]) -> None:
    class Tracked(RKV):
        def tracker(self) -> ScoreTracker:
            return tracker(self)

    evictor = Tracked(budget=12, window=4, observation=2)
    caught(lambda: check_evictor(evictor, examples=20), "tracker")


def test_a_right_one_passes() -> None:
    check_evictor(Norms(budget=8, window=4))


@pytest.mark.parametrize("wrong", [Norms, "norms", None, 3])
def test_wrong_usage_is_a_configuration_error(wrong: object) -> None:
    with pytest.raises(ConfigError, match="evictor = "):
        check_evictor(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="examples = 0"):
        check_evictor(Norms(budget=8), examples=0)

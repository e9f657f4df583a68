"""From scores to kept indices: the one place that knows protection, ties, order and padding."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kvrescue.errors import EvictorError, KVRescueError
from kvrescue.evictors.base import Evictor, KVSlice

__all__ = ["PAD", "choose", "leaving", "named", "places_of", "select"]

PAD = -1
"""Fills the end of rows that keep fewer entries than others."""


@torch.no_grad()
def select(evictor: Evictor, kv: KVSlice) -> Tensor:
    """See `Evictor.select`."""
    _check_shapes(evictor, kv)
    rows, heads, length, _ = kv.keys.shape
    specs = _row_specs(evictor, kv)
    if specs is None or len(specs) == 1:
        spec = (length, 0, kv.queries.shape[2]) if specs is None else next(iter(specs))
        return _select_dense(evictor, _narrow(kv, None, spec), spec[1])
    kept = max(_kept_count(evictor, spec) for spec in specs)
    out = torch.full((rows, heads, kept), PAD, dtype=torch.int64, device=kv.keys.device)
    for spec, members in specs.items():
        index = torch.tensor(members, device=kv.keys.device)
        part = _select_dense(evictor, _narrow(kv, index, spec), spec[1])
        out[index, :, : part.shape[2]] = part
    return out


Spec = tuple[int, int, int]
"""(length, prefix, queries) of a row."""


def _kept_count(evictor: Evictor, spec: Spec) -> int:
    length, prefix, _ = spec
    return min(length, prefix + evictor.bound)


def _row_specs(evictor: Evictor, kv: KVSlice) -> dict[Spec, list[int]] | None:
    """Rows grouped by what `score` must not see differ; None when nothing is ragged."""
    if kv.lengths is None and kv.prefix is None and kv.query_counts is None:
        return None
    rows, _, length, _ = kv.keys.shape
    observed = kv.queries.shape[2]
    lengths = _host(evictor, "lengths", kv.lengths, rows, (0, length), length)
    prefixes = _host(evictor, "prefix", kv.prefix, rows, (0, length), 0)
    counts = _host(evictor, "query_counts", kv.query_counts, rows, (1, observed), observed)
    groups: dict[Spec, list[int]] = {}
    for row, spec in enumerate(zip(lengths, prefixes, counts, strict=True)):
        if spec[1] > spec[0]:
            raise EvictorError(
                f"{_name(evictor)}: KVSlice.prefix[{row}] = {spec[1]} exceeds the row's length "
                f"{spec[0]}; protect at most the entries the row has"
            )
        groups.setdefault(spec, []).append(row)
    return groups


def _host(
    evictor: Evictor,
    field: str,
    value: Tensor | None,
    rows: int,
    limits: tuple[int, int],
    default: int,
) -> Sequence[int]:
    if value is None:
        return [default] * rows
    if value.shape != (rows,) or value.is_floating_point() or value.dtype == torch.bool:
        raise EvictorError(
            f"{_name(evictor)}: KVSlice.{field} is {value.dtype} {list(value.shape)}; "
            f"give integers [rows] = [{rows}]"
        )
    numbers: list[int] = value.tolist()
    low, high = limits
    for row, number in enumerate(numbers):
        if not low <= number <= high:
            raise EvictorError(
                f"{_name(evictor)}: KVSlice.{field}[{row}] = {number} is out of range; "
                f"it must lie in {low}..{high}"
            )
    return numbers


def _narrow(kv: KVSlice, index: Tensor | None, spec: Spec) -> KVSlice:
    """The dense slice of rows `index` (None = all) with `spec`; views where nothing is cut."""
    length, prefix, queries = spec

    def rows_of(value: Tensor) -> Tensor:
        return value if index is None else value.index_select(0, index)

    def entries(value: Tensor | None) -> Tensor | None:
        return None if value is None else rows_of(value[:, :, :length])

    keys = rows_of(kv.keys[:, :, :length])
    return dataclasses.replace(
        kv,
        keys=keys,
        queries=rows_of(kv.queries[:, :, kv.queries.shape[2] - queries :]),
        values=entries(kv.values),
        positions=entries(kv.positions),
        attention=entries(kv.attention),
        prefix=torch.full((keys.shape[0],), prefix, device=keys.device) if prefix else None,
        lengths=None,
        query_counts=None,
    )


def _select_dense(evictor: Evictor, kv: KVSlice, prefix: int) -> Tensor:
    rows, heads, length, _ = kv.keys.shape
    device = kv.keys.device
    middle = length - prefix - evictor.window
    drop = middle - evictor.budget
    if drop <= 0 or rows == 0:
        kept = length if drop <= 0 else prefix + evictor.bound
        return torch.arange(kept, device=device).repeat(rows, heads, 1)
    with named(evictor):
        scores = evictor.score(kv)
    return choose(evictor, kv, scores, prefix)


def choose(evictor: Evictor, kv: KVSlice, scores: Tensor, prefix: int) -> Tensor:
    """Kept indices of a dense slice that exceeds its bound, from `scores` in temporal order.

    `kv` is read for its shape, and to say where a score that is not finite comes from.
    """
    length = kv.keys.shape[2]
    middle = length - prefix - evictor.window
    scores = _checked(evictor, kv, scores, prefix, middle)
    if middle - evictor.budget == 1:
        return _all_but_one(scores, prefix, length)
    return _best(scores, evictor.budget, prefix, length)


def leaving(evictor: Evictor, kv: KVSlice, scores: Tensor, prefix: int) -> Tensor:
    """What `choose` does not keep: indices [rows, kv_heads, dropped], ascending."""
    middle = kv.keys.shape[2] - prefix - evictor.window
    scores = _checked(evictor, kv, scores, prefix, middle)
    if middle - evictor.budget == 1:
        return _lowest(scores).add_(prefix)
    return places_of(~_stay(scores, evictor.budget), middle - evictor.budget).add_(prefix)


def _all_but_one(scores: Tensor, prefix: int, length: int) -> Tensor:
    """Indices without the lowest of the middle `scores`."""
    index = torch.arange(length - 1, device=scores.device)
    return index + (index >= _lowest(scores) + prefix)


def _lowest(scores: Tensor) -> Tensor:
    """[..., 1]: index of the lowest score; of equal ones the last."""
    # argmin gives the first of equal minima, hence the flip.
    return (scores.shape[-1] - 1) - scores.flip(-1).argmin(-1, keepdim=True)


def _best(scores: Tensor, budget: int, prefix: int, length: int) -> Tensor:
    """Indices of the prefix, the `budget` best of the middle (earlier first) and the window."""
    lead, middle = scores.shape[:-1], scores.shape[-1]
    chosen = places_of(_stay(scores, budget), budget).add_(prefix)
    index = torch.arange(length, device=scores.device)
    first, last = index[:prefix], index[prefix + middle :]
    return torch.cat((first.expand(*lead, -1), chosen, last.expand(*lead, -1)), dim=-1)


def _stay(scores: Tensor, budget: int) -> Tensor:
    """True for the `budget` best scores; of equal ones the earlier."""
    cut = scores.topk(budget, dim=-1, sorted=True).values[..., -1:]
    above = scores > cut
    level = scores == cut
    room = budget - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= room))


def places_of(chosen: Tensor, count: int) -> Tensor:
    """[..., count]: the indices at which `chosen` [..., n] is true, `count` in every line."""
    # The j-th goes to slot j; whatever is not chosen lands in the spare slot at the end.
    slot = torch.where(chosen, chosen.cumsum(-1) - 1, count)
    lead = chosen.shape[:-1]
    out = torch.empty((*lead, count + 1), dtype=torch.int64, device=chosen.device)
    index = torch.arange(chosen.shape[-1], device=chosen.device)
    return out.scatter_(-1, slot, index.expand(chosen.shape))[..., :count]


def _checked(evictor: Evictor, kv: KVSlice, scores: Tensor, prefix: int, middle: int) -> Tensor:
    """The scores of the middle, in float32, known to be finite."""
    expected = kv.keys.shape[:3]
    if not isinstance(scores, Tensor) or scores.shape != expected:
        got = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise EvictorError(
            f"{_name(evictor)}: score() returned {got}, expected [rows, kv_heads, length] = "
            f"{list(expected)}"
        )
    if not scores.is_floating_point():
        raise EvictorError(
            f"{_name(evictor)}: score() returned {scores.dtype}; return float32 scores"
        )
    scores = scores[..., prefix : prefix + middle]
    if scores.dtype != torch.float64:
        scores = scores.to(torch.float32)
    # A sum is a pass less; that of finite scores may overflow, hence the second look.
    if not math.isfinite(float(scores.sum())) and not bool(torch.isfinite(scores).all()):
        raise EvictorError(f"{_name(evictor)}: {_why_not_finite(kv, scores, prefix)}")
    return scores


def _why_not_finite(kv: KVSlice, scores: Tensor, prefix: int) -> str:
    for field in ("keys", "queries", "values", "attention"):
        value = getattr(kv, field)
        if value is not None and not bool(torch.isfinite(value).all()):
            row, head, entry = torch.isfinite(value).logical_not().nonzero()[0].tolist()[:3]
            return (
                f"KVSlice.{field} holds {_first_bad(value)} at row {row}, head {head}, "
                f"entry {entry}; the model or the cache produced it: run in float32 or bfloat16 "
                "and check the checkpoint"
            )
    row, head, entry = torch.isfinite(scores).logical_not().nonzero()[0].tolist()
    return (
        f"score() returned {_first_bad(scores)} at row {row}, KV head {head}, entry "
        f"{prefix + entry}; scores must be finite (use a large negative number, not -inf)"
    )


def _first_bad(value: Tensor) -> float:
    return float(value[torch.isfinite(value).logical_not()][0])


@contextlib.contextmanager
def named(evictor: Evictor) -> Iterator[None]:
    """What an evictor's own code raises, as an EvictorError that names it and keeps the cause."""
    try:
        yield
    except KVRescueError:
        raise
    except Exception as error:
        raise EvictorError(f"{_name(evictor)} failed: {type(error).__name__}: {error}") from error


def _name(evictor: Evictor) -> str:
    return f"evictor {(evictor.kind or type(evictor).__name__)!r}"


def _check_shapes(evictor: Evictor, kv: KVSlice) -> None:
    name = _name(evictor)
    for field, axes in (
        ("keys", "[rows, kv_heads, length, head_dim]"),
        ("queries", "[rows, q_heads, observation, head_dim]"),
    ):
        value: Tensor = getattr(kv, field)
        if value.dim() != 4:
            raise EvictorError(
                f"{name}: KVSlice.{field} has shape {list(value.shape)}; give {axes}"
            )
        if not value.is_floating_point():
            raise EvictorError(
                f"{name}: KVSlice.{field} has dtype {value.dtype}; give floating-point tensors "
                "(dequantise the cache first)"
            )
    rows, heads, length, dim = kv.keys.shape
    q_rows, q_heads, observed, q_dim = kv.queries.shape
    if q_rows != rows or q_dim != dim:
        raise EvictorError(
            f"{name}: KVSlice.queries has shape {list(kv.queries.shape)} for keys "
            f"{list(kv.keys.shape)}; rows and head_dim must agree"
        )
    if heads == 0 or q_heads == 0 or q_heads % heads:
        raise EvictorError(
            f"{name}: KVSlice.queries has {q_heads} query heads for {heads} KV heads; give a "
            "positive multiple (query head a reads KV head a // group)"
        )
    if observed == 0:
        raise EvictorError(
            f"{name}: KVSlice.queries is empty (observation axis = 0); give at least the newest "
            "query"
        )
    for field in ("values", "positions", "attention"):
        other: Tensor | None = getattr(kv, field)
        if other is not None and other.shape[:3] != kv.keys.shape[:3]:
            raise EvictorError(
                f"{name}: KVSlice.{field} has shape {list(other.shape)}; its first axes must be "
                f"[rows, kv_heads, length] = {[rows, heads, length]}"
            )
    if evictor.needs_attention and kv.attention is None:
        raise EvictorError(
            f"{name}: KVSlice.attention is None; this evictor needs the attention mass that each "
            "entry received (engines accumulate it when `needs_attention` is set)"
        )
    if evictor.needs_values and kv.values is None:
        raise EvictorError(f"{name}: KVSlice.values is None; this evictor reads the values")

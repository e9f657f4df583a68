"""Slices for evictors, and what must hold on each of them. Imports torch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.testing import evictors as laws
from kvrescue.testing.evictors import KVCase
from kvrescue.testing.laws import broken
from kvrescue.testing.tensors import (
    NEAR,
    difference,
    floats,
    layouts,
    make_slice,
    near,
    numbers,
    same,
    single_row,
    spans,
)

__all__ = ["check_case"]

PAD = -1


@torch.no_grad()  # as the engines call it
def check_case(evictor: Evictor, who: str, case: KVCase) -> None:
    """Raises LawBroken when the evictor breaks a law on this slice."""
    __tracebackhide__ = True
    check = _Check(evictor, who, case)
    alone: list[Tensor] = []
    for row in range(len(case.rows)):
        if check.exceeds(row) and row == case.rows.index(case.rows[row]):
            check.scores_of(row)
        alone.append(check.kept_alone(row))
    check.batch(alone)


def fault_of_form(scores: Any, shape: tuple[int, ...]) -> tuple[str, str] | None:
    """What `score` returned instead of a tensor of this shape, and what it should do."""
    wanted = f"float32 {list(shape)}"
    if inspect.iscoroutine(scores):
        scores.close()
        return "a coroutine", f"{wanted}: make it `def score`, not `async def`"
    if scores is None:
        return "None", f"{wanted}: return the scores"
    if not isinstance(scores, Tensor):
        return f"a {type(scores).__name__}", f"{wanted}: a torch.Tensor, as in torch.as_tensor(...)"
    kind = str(scores.dtype).removeprefix("torch.")
    seen = f"{kind} {list(scores.shape)}"
    if tuple(scores.shape) != shape:
        return seen, f"{wanted}: one number for every row, KV head and entry"
    if scores.dtype not in (torch.float32, torch.float64):
        return seen, f"{wanted}: compute in float32 (`kv.keys.float()`)"
    return None


class _Check:
    """One slice, and the laws in the order in which they build on one another."""

    def __init__(self, evictor: Evictor, who: str, case: KVCase) -> None:
        self.evictor, self.who, self.case = evictor, who, case
        self.everything = make_slice(case)
        self.kv = dataclasses.replace(
            self.everything,
            values=self.everything.values if evictor.needs_values else None,
            attention=self.everything.attention if evictor.needs_attention else None,
        )

    def exceeds(self, row: int) -> bool:
        length, prompt, _ = self.case.rows[row]
        return self.evictor.bounded and length > prompt + self.evictor.bound

    def middle(self, row: int) -> slice:
        length, prompt, _ = self.case.rows[row]
        return slice(prompt, length - self.evictor.window)

    def score(self, kv: KVSlice) -> Tensor:
        """Scores of a slice that must still be what it was."""
        __tracebackhide__ = True
        return self._untouched(kv, self.evictor.score, "score")

    def select(self, kv: KVSlice) -> Tensor:
        __tracebackhide__ = True
        return self._untouched(kv, self.evictor.select, "select")

    def _untouched(self, kv: KVSlice, call: Callable[[KVSlice], Tensor], name: str) -> Tensor:
        __tracebackhide__ = True
        before = {
            field: value.clone()
            for field in (f.name for f in dataclasses.fields(kv))
            if isinstance(value := getattr(kv, field), Tensor)
        }
        result = call(kv)
        for field, value in before.items():
            if not same(getattr(kv, field), value):
                broken(
                    laws.READ_ONLY, self.who, f"`{name}` changed kv.{field}", "a slice as it was"
                )
        return result

    def scores_of(self, row: int) -> None:
        """The laws of `score`, on one row alone."""
        __tracebackhide__ = True
        kv = single_row(self.kv, self.case, row)
        scores = self._score_declared(kv, row)
        where = self.middle(row)
        self._check_form(scores, tuple(kv.keys.shape[:3]), where)
        again = self.score(kv)
        if not same(scores[..., where], again[..., where]):
            broken(
                laws.DETERMINISTIC,
                self.who,
                difference(scores, again, where, ("first", "then")),
                "the same scores twice",
            )
        if self.case.dtype != "float32":
            full = self.score(floats(kv))
            if not near(scores[..., where], full[..., where]):
                broken(
                    laws.PRECISION,
                    self.who,
                    difference(scores, full, where, (self.case.dtype, "float32")),
                    "the same scores, as every number of the input is one of float32, too",
                )
        for layout, other in layouts(kv):
            try:
                found = self.score(other)
            except Exception as error:
                broken(
                    laws.LAYOUT,
                    self.who,
                    f"{layout}: {type(error).__name__}: {error}",
                    "the scores of a contiguous copy",
                )
            if found.shape != scores.shape or not near(scores[..., where], found[..., where]):
                seen = (
                    difference(scores, found, where, ("contiguous", layout))
                    if found.shape == scores.shape
                    else f"{layout}: scores {list(found.shape)}"
                )
                broken(laws.LAYOUT, self.who, seen, "the scores of a contiguous copy")

    def _score_declared(self, kv: KVSlice, row: int) -> Tensor:
        """Scores from what the evictor says it needs."""
        __tracebackhide__ = True
        try:
            scores = self.score(kv)
        except Exception as error:
            try:
                self.score(single_row(self.everything, self.case, row))
            except Exception:
                raise error from None
            missing = [n for n in ("values", "attention") if getattr(kv, n) is None]
            broken(
                laws.NEEDS,
                self.who,
                f"without {' and '.join(missing)}: {type(error).__name__}: {error}",
                "scores from what it declares",
            )
        self._check_undeclared(scores, row)
        if not self.evictor.needs_keys:
            other = self.score(dataclasses.replace(kv, keys=kv.keys.flip(2)))
            if not same(scores, other):
                broken(
                    laws.NEEDS,
                    self.who,
                    "other scores when keys lie in another order, although needs_keys is cleared",
                    "the same scores",
                )
        return scores

    def _check_undeclared(self, scores: object, row: int) -> None:
        """No scores at all, and scores where everything is there: it reads what it does not say."""
        __tracebackhide__ = True
        missing = [n for n in ("values", "attention") if getattr(self.kv, n) is None]
        shape = tuple(single_row(self.kv, self.case, row).keys.shape[:3])
        fault = fault_of_form(scores, shape)
        if not missing or fault is None:
            return
        whole = self.score(single_row(self.everything, self.case, row))
        if not fault_of_form(whole, shape):
            seen = f"without {' and '.join(missing)}: {fault[0]}"
            broken(laws.NEEDS, self.who, seen, "scores from what it declares")

    def _check_form(self, scores: Any, shape: tuple[int, ...], where: slice) -> None:
        __tracebackhide__ = True
        expected = f"finite numbers, float32 {list(shape)}"
        fault = fault_of_form(scores, shape)
        if fault:
            broken(laws.SCORES, self.who, *fault)
        finite = torch.isfinite(scores[..., where])
        if not bool(finite.all()):
            _, head, entry = finite.logical_not().nonzero()[0].tolist()
            entry += where.start
            broken(
                laws.SCORES,
                self.who,
                f"{float(scores[0, head, entry])} for entry {entry} of KV head {head}",
                expected,
            )

    def kept_alone(self, row: int) -> Tensor:
        """The laws of `select`, on one row alone; returns its kept indices."""
        __tracebackhide__ = True
        kv = single_row(self.kv, self.case, row)
        kept = self.select(kv)
        self._check_kept(kept, row)
        if self.exceeds(row):
            scores = self.score(kv)
            for head, indices in enumerate(kept[0].tolist()):
                where = self.middle(row)
                given = scores[0, head, where].tolist()
                ranked = sorted(range(len(given)), key=lambda j: (-given[j], j))
                best = sorted(where.start + j for j in ranked[: self.evictor.budget])
                found = [i for i in indices if where.start <= i < where.stop]
                if found != best:
                    broken(
                        laws.BEST,
                        self.who,
                        f"KV head {head} keeps {spans(found)} of entries {where.start} to "
                        f"{where.stop - 1}, whose scores are {numbers(given)}",
                        spans(best),
                    )
        return kept

    def _check_kept(self, kept: Tensor, row: int) -> None:
        __tracebackhide__ = True
        length, prompt, _ = self.case.rows[row]
        bound = prompt + self.evictor.bound
        count = length if not self.exceeds(row) else bound
        heads = self.case.kv_heads
        if kept.dtype != torch.int64 or kept.dim() != 3 or kept.shape[:2] != (1, heads):
            broken(
                laws.INDICES,
                self.who,
                f"{kept.dtype} {list(kept.shape)}",
                f"int64 [rows, kv_heads, kept] = [1, {heads}, {count}]",
            )
        for head, indices in enumerate(kept[0].tolist()):
            whose = f"KV head {head} of a row of {length} entries"
            where = f"{whose} keeps {spans(indices)}"
            if indices != sorted(set(indices)) or not all(0 <= i < length for i in indices):
                broken(laws.INDICES, self.who, where, f"ascending entries of 0 to {length - 1}")
            if indices[:prompt] != list(range(prompt)):
                broken(laws.PROMPT, self.who, where, f"entries 0 to {prompt - 1} among them")
            newest = min(self.evictor.window, length)
            if indices[len(indices) - newest :] != list(range(length - newest, length)):
                broken(
                    laws.WINDOW,
                    self.who,
                    where,
                    f"the {newest} newest, {length - newest} to {length - 1}, among them",
                )
            if len(indices) != count:
                rule = "all of them" if count == length else f"prompt {prompt} + B'"
                broken(
                    laws.BOUND,
                    self.who,
                    f"{whose} keeps {len(indices)}",
                    f"{count} ({rule})",
                )

    def batch(self, alone: list[Tensor]) -> None:
        """Row independence: rows together, and in the other order."""
        __tracebackhide__ = True
        rows = list(range(len(self.case.rows)))
        if len(set(self.case.rows)) == 1 and self.exceeds(0) and len(rows) > 1:
            together = self.score(dataclasses.replace(self.kv))
            for row in rows:
                single = self.score(single_row(self.kv, self.case, row))
                where = self.middle(row)
                if not near(single[..., where], together[row : row + 1, ..., where]):
                    broken(
                        laws.ROWS,
                        self.who,
                        f"row {row} of {len(rows)}: "
                        + difference(
                            single, together[row : row + 1], where, ("alone", "in the batch")
                        ),
                        "the same scores",
                    )
        kept = self.select(self.kv)
        self._compare(kept, alone, rows, "in the batch")
        turned = rows[::-1]
        parts: dict[str, Any] = {
            f.name: getattr(self.kv, f.name) for f in dataclasses.fields(KVSlice)
        }
        parts = {n: None if value is None else value[turned] for n, value in parts.items()}
        moved = KVSlice(**parts)
        self._compare(self.select(moved), [alone[row] for row in turned], turned, "in other order")

    def _compare(self, kept: Tensor, alone: list[Tensor], rows: list[int], how: str) -> None:
        __tracebackhide__ = True
        most = max(part.shape[2] for part in alone)
        if kept.shape != (len(rows), self.case.kv_heads, most):
            broken(
                laws.INDICES,
                self.who,
                f"{len(rows)} rows: kept {list(kept.shape)}",
                f"[rows, kv_heads, kept] = {[len(rows), self.case.kv_heads, most]}",
            )
        for place, row in enumerate(rows):
            count = alone[place].shape[2]
            if not bool((kept[place, :, count:] == PAD).all()):
                broken(
                    laws.INDICES,
                    self.who,
                    f"row {row} keeps {count} entries and ends with "
                    f"{kept[place, 0, count:].tolist()}",
                    f"padding with {PAD}",
                )
            for head in range(self.case.kv_heads):
                mine = kept[place, head, :count].tolist()
                theirs = alone[place][0, head].tolist()
                if mine != theirs and not self._near_tie(row, head, mine, theirs):
                    broken(
                        laws.ROWS,
                        self.who,
                        f"row {row} of {len(rows)}, KV head {head}: alone it keeps "
                        f"{spans(theirs)}; {how} {spans(mine)}",
                        "the same entries",
                    )

    def _near_tie(self, row: int, head: int, mine: list[int], theirs: list[int]) -> bool:
        differ = sorted(set(mine) ^ set(theirs))
        where = self.middle(row)
        if len(mine) != len(theirs) or not all(where.start <= i < where.stop for i in differ):
            return False
        scores = self.score(single_row(self.kv, self.case, row))[0, head]
        gap = float(scores[differ].max() - scores[differ].min())
        return gap <= NEAR * float(scores[where].abs().max())

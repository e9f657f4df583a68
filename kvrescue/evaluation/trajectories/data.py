"""The report's data: runs and traces as one compact JSON document, in pieces.

The *index* tells of every problem and setting what a list shows; a *chunk* per problem holds its
trajectories round by round and how any two of them differ, so that a page reads only what it shows.
`docs/trajectories.md` describes the fields.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kvrescue.errors import ConfigError
from kvrescue.evaluation.grading.exact import grade_exact
from kvrescue.evaluation.grading.grade import GradingRule
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.trajectories import settings as columns
from kvrescue.evaluation.trajectories.diff import diverge
from kvrescue.evaluation.trajectories.entries import Entry, Sources
from kvrescue.evaluation.trajectories.settings import Column
from kvrescue.evaluation.trajectories.trace import (
    Caps,
    Round,
    Trajectory,
)
from kvrescue.types import CacheStats, Candidate, Degradation, Verdict

__all__ = ["SCHEMA", "Report", "collect"]

SCHEMA: Final = 1
"""Raised when something in the data changes its meaning."""

_DIGITS: Final = 6
"""Significant digits of scores and measured values: what a reader can tell apart."""


@dataclass(frozen=True)
class Report:
    """Everything that the page holds, as plain JSON data."""

    index: dict[str, Any]
    """What the page shows first: sources, settings, problems."""
    chunks: list[dict[str, Any]]
    """One per problem, in the order of the index."""
    damaged: tuple[Path, ...] = ()
    """Traces of runs that could not be read; they are left out."""

    @property
    def traced(self) -> int:
        """Trajectories that are there round by round."""
        return sum(
            "rounds" in found for chunk in self.chunks for found in chunk["trajectories"].values()
        )

    @property
    def trajectories(self) -> int:
        """How many there are, over all problems and settings."""
        return sum(len(chunk["trajectories"]) for chunk in self.chunks)


def collect(
    runs: Sequence[Run] = (), traces: Sequence[str | os.PathLike[str]] = (), title: str = ""
) -> Report:
    """Read runs and traces into one report.

    A problem of several sources is one: the same question and right answer. A trace's answers are
    judged only where a run tells the right one of the same question: whole numbers by their rule,
    mathematics by the letter (what differs stays ungraded: its rules need processes of their own).

    Args:
        runs: each with its settings as columns.
        traces: files of JSON lines; columns of their own.
        title: of the page (default: the names of the sources).

    Raises:
        ConfigError: there is nothing to read.
        RunError: a trace cannot be read.
    """
    found = Sources()
    for run in runs:
        found.add_run(run)
    for path in traces:
        found.add_trace(path)
    if not found.names:
        raise ConfigError("no trajectories: name the folder of a run, or a trace")
    names = _distinct(found.names)
    labelled = columns.with_baselines(columns.with_labels(found.columns, names))
    chunks, problems = [], []
    for key, entry in zip(
        _distinct([entry.id for entry in found.entries.values()]),
        found.entries.values(),
        strict=True,
    ):
        found.read_traces(entry)
        made = (
            (place, _trajectory(labelled[place], entry, place)) for place in range(len(labelled))
        )
        cells = {place: cell for place, cell in made if cell is not None}
        problems.append(_listed(key, entry, cells, len(labelled)))
        chunks.append({"trajectories": cells, "diffs": list(_diffs(entry.traces))})
        entry.traces.clear()  # what a long run keeps would not fit the memory at once
    index = {
        "schema": SCHEMA,
        "title": title or " and ".join(names),
        "sources": [
            {"name": name, **about} for name, about in zip(names, found.about, strict=True)
        ],
        "settings": [
            column.data(identity)
            for column, identity in zip(
                labelled, _distinct([column.key for column in labelled]), strict=True
            )
        ],
        "problems": problems,
    }
    return Report(index, chunks, tuple(found.damaged))


def _distinct(names: Iterable[str]) -> list[str]:
    """The names, with a number added to those that stand there already."""
    taken: set[str] = set()
    found = []
    for name in names:
        tries = (name if number == 1 else f"{name}~{number}" for number in itertools.count(1))
        found.append(next(one for one in tries if one not in taken))
        taken.add(found[-1])
    return found


def _listed(
    key: str, entry: Entry, cells: Mapping[int, dict[str, Any]], width: int
) -> dict[str, Any]:
    """A problem of the index."""
    rows: list[list[Any] | None] = [None] * width
    for place, cell in cells.items():
        uses = cell["uses"].values()
        rows[place] = [
            cell["outcome"],
            cell["answer"],
            sum(use["aborted"] for use in uses),
            int(bool(cell["degradations"])),
            int("rounds" in cell),
            {name: use["generated"] for name, use in cell["uses"].items()},
        ]
    return {"id": key, "question": entry.question, "gold": entry.gold, "cells": rows}


def _diffs(found: Mapping[int, Trajectory]) -> Iterator[list[Any]]:
    for left, right in itertools.combinations(sorted(found), 2):
        yield [left, right, *diverge(found[left], found[right]).data()]


# -- one trajectory ---------------------------------------------------------------------------


def _trajectory(column: Column, entry: Entry, place: int) -> dict[str, Any] | None:
    record, trajectory = entry.records.get(place), entry.traces.get(place)
    if record is None and trajectory is None:
        return None
    data: dict[str, Any] = {}
    if record is not None:
        data |= _of_record(record)
    if trajectory is not None:
        if record is None:
            data |= _of_trace(trajectory, entry)
        data["proposers"] = list(trajectory.proposers)
        data["opened"] = _caches(trajectory.caches)
        data["rounds"] = [_round(round_, column.caps) for round_ in trajectory.rounds]
        data["saved"] = _sum(round_["saved"] for round_ in data["rounds"])
        data.pop("text", None)
    else:
        data["proposers"] = list(data["uses"])
    return data


def _of_record(record: Record) -> dict[str, Any]:
    failed = record.failure is not None
    return {
        "outcome": "failed" if failed else "correct" if record.correct else "wrong",
        "answer": record.answer,
        "stop": record.stop,
        "steps": record.steps,
        "output_tokens": record.output_tokens,
        "seconds": _rounded(record.seconds),
        "rules": dict(record.rules),
        "uses": {name: asdict(use) for name, use in record.uses.items()},
        "degradations": _degradations(record.degradations),
        "failure": asdict(record.failure) if record.failure is not None else None,
        "sources": list(record.sources),
        "text": record.text,
    }


def _of_trace(trajectory: Trajectory, entry: Entry) -> dict[str, Any]:
    solution = trajectory.solution
    steps = trajectory.steps
    told = [found for round_ in trajectory.rounds for found in round_.degradations]
    return {
        "outcome": _judged(trajectory, entry),
        "answer": None if solution is None else solution.answer,
        "stop": trajectory.stop,
        "steps": len(steps),
        "output_tokens": sum(_n_tokens(round_) for round_ in steps),
        "seconds": None,
        "rules": {},
        "uses": _uses(trajectory),
        "degradations": _degradations(told if solution is None else solution.degradations),
        "failure": None,
        "sources": [round_.source for round_ in steps],
    }


def _judged(trajectory: Trajectory, entry: Entry) -> str:
    solution, gold = trajectory.solution, entry.gold
    if solution is None:
        return "unfinished"
    if gold is None:
        return "ungraded"
    if entry.rule is GradingRule.EXACT:
        try:
            return "correct" if grade_exact(solution.text, gold).correct else "wrong"
        except ConfigError:  # the right answer is no whole number
            pass
    return "correct" if solution.answer == gold else "ungraded"


def _uses(trajectory: Trajectory) -> dict[str, dict[str, int]]:
    """The work of each proposer, counted from its candidates."""
    names = ("candidates", "generated", "aborted", "aborted_tokens")
    blank = dict.fromkeys((*names, "committed_steps", "committed_tokens"), 0)
    uses = {proposer: dict(blank) for proposer in trajectory.proposers}
    for round_ in trajectory.rounds:
        for candidate in round_.candidates:
            use = uses.setdefault(candidate.policy, dict(blank))
            use["candidates"] += 1
            use["generated"] += candidate.n_tokens
            if candidate.verdict is not None:
                use["aborted"] += 1
                use["aborted_tokens"] += candidate.n_tokens
        if round_.source is not None:
            uses[round_.source]["committed_steps"] += 1
            uses[round_.source]["committed_tokens"] += _n_tokens(round_)
    return uses


def _n_tokens(round_: Round) -> int:
    return 0 if round_.chosen is None else round_.candidates[round_.chosen].n_tokens


def _round(round_: Round, caps: Caps) -> dict[str, Any]:
    spent: dict[str, int] = {}
    for candidate in round_.candidates:
        spent[candidate.policy] = spent.get(candidate.policy, 0) + candidate.n_tokens
    saved = [
        caps.saved(candidate, round_.committed)
        for candidate in round_.candidates
        if candidate.verdict is not None
    ]
    return {
        "step": round_.step,
        "chosen": round_.chosen,
        "skipped": round_.skipped,
        "spent": spent,
        "saved": _sum(saved),
        "caches": _caches(round_.caches),
        "degradations": _degradations(round_.degradations),
        "candidates": [
            _candidate(candidate, score)
            for candidate, score in zip(round_.candidates, round_.scores, strict=True)
        ],
    }


def _candidate(candidate: Candidate, score: float | None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "source": candidate.policy,
        "index": candidate.index,
        "text": candidate.text,
        "tokens": candidate.n_tokens,
        "score": _rounded(score),
        "stop": candidate.stop.value,
    }
    if candidate.verdict is not None:
        data["verdict"] = _verdict(candidate.verdict)
    return data


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "detector": verdict.detector,
        "reason": verdict.reason,
        "value": _rounded(verdict.value),
        "threshold": _rounded(verdict.threshold),
        "position": verdict.position,
    }


def _caches(caches: Mapping[str, CacheStats]) -> dict[str, list[int | None]]:
    """By proposer: logical length, physical length, its peak, evictions, dropped, bound."""
    return {
        name: [
            stats.logical_length,
            stats.physical_length,
            stats.peak_physical,
            stats.evictions,
            stats.dropped,
            stats.bound,
        ]
        for name, stats in caches.items()
    }


def _degradations(found: Iterable[Degradation]) -> list[dict[str, str]]:
    return [{"where": one.where, "message": one.message} for one in found]


def _sum(counts: Iterable[int | None]) -> int | None:
    """Their sum; None when one of them is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _rounded(number: float | None) -> float | str | None:
    """To what a reader tells apart; what JSON has no number for becomes a text."""
    if number is None:
        return None
    return float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else str(number)

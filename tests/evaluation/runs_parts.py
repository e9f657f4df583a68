"""Hand-made runs: records with known answers, no model behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvrescue.config import RescueConfig, load_config
from kvrescue.evaluation.grading import GradingRule
from kvrescue.evaluation.methods import BASE, HELPER, Method
from kvrescue.evaluation.problems import Problem, ProblemSet
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.record import Record, Use
from kvrescue.evaluation.runs.settings import Setting, distinct, setting_of

PATH = Path("hand-made")


def problem_set(count: int) -> ProblemSet:
    problems = (Problem(f"p{i}", f"What is {i} + {i}?", str(2 * i)) for i in range(count))
    return ProblemSet("hand-made", tuple(problems), GradingRule.EXACT)


@cache
def config(budget: int, *overrides: str) -> RescueConfig:
    """The tiny preset's, at a budget."""
    changed = (f"proposers.base.policy.evictor.budget={budget}", *overrides)
    return load_config("tiny", changed)


def setting(
    method: Method, budget: int = 16, n: int = 1, seed: int = 0, overrides: Sequence[str] = ()
) -> Setting:
    return setting_of(config(budget, *overrides), method, n, budget, seed)


def use(generated: int = 100, steps: int = 4, **fields: Any) -> Use:
    counts = {"candidates": 8, "committed_steps": steps, "prompt": 10, "attended": 1000}
    return Use(generated=generated, **{**counts, **fields})


def record(of: Setting, problem: Problem, correct: bool = True, **fields: Any) -> Record:
    """A row whose proposers did alike, four steps of the first one; `fields` change that."""
    names = list(of.config.proposers)
    plain: dict[str, Any] = {
        "answer": problem.answer if correct else "0?",
        "rules": {"exact": correct},
        "stop": "eos",
        "steps": 4,
        "output_tokens": 40,
        "sources": (names[0],) * 4,
        "uses": {name: use() for name in names},
        "scored": 8,
        "scored_tokens": 80,
    }
    return Record(
        of.key, problem.id, problem.digest, problem.answer, correct=correct, **{**plain, **fields}
    )


Fill = Callable[[Setting, Problem, int], Record | None]
"""The record of a setting and a problem, with the problem's place; None: not run yet."""


def run(settings: Iterable[Setting], problems: int | ProblemSet, fill: Fill) -> Run:
    """A run in memory."""
    known = problem_set(problems) if isinstance(problems, int) else problems
    by_key = {found.key: found for found in distinct(settings)}
    records = {}
    for found in by_key.values():
        for place, problem in enumerate(known):
            made = fill(found, problem, place)
            if made is not None:
                records[found.key, problem.id] = made
    return Run(PATH, known, by_key, {"made": tuple(by_key)}, records)


def right_up_to(counts: dict[tuple[Method, int | None, int], int]) -> Fill:
    """The first so many problems are right, by method, budget and N; other cells are not run."""

    def fill(of: Setting, problem: Problem, place: int) -> Record | None:
        right = counts.get((of.method, of.budget, of.n))
        return None if right is None else record(of, problem, place < right)

    return fill


def grid(
    methods: Sequence[Method] = ("full_kv", "helper", "best_of_n", "interleaved", "kv_rescue"),
    budgets: Sequence[int] = (16, 64),
    ns: Sequence[int] = (1, 8),
    seeds: Sequence[int] = (0,),
) -> list[Setting]:
    return distinct(
        setting(method, budget, n, seed)
        for budget in budgets
        for n in ns
        for seed in seeds
        for method in methods
    )


def without(found: Run, kept: Callable[[Record], bool]) -> Run:
    """A run as if some records were not there yet."""
    records = {key: made for key, made in found.records.items() if kept(made)}
    return replace(found, records=records)


__all__ = [
    "BASE",
    "HELPER",
    "config",
    "grid",
    "problem_set",
    "record",
    "right_up_to",
    "run",
    "setting",
    "use",
    "without",
]

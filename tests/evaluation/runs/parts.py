"""Runs without models: settings of the tiny preset, and records made by hand."""

from __future__ import annotations

from typing import Any

from kvrescue.config import load_config
from kvrescue.evaluation.grading import GradingRule
from kvrescue.evaluation.problems import Problem, ProblemSet
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.runs.settings import Setting, setting_of


def problem_set(count: int) -> ProblemSet:
    problems = tuple(Problem(str(i), f"What is {i} + {i}?", str(2 * i)) for i in range(count))
    return ProblemSet("sums", problems, GradingRule.EXACT)


def setting(method: Any = "kv_rescue", n: int = 1, budget: int = 16, seed: int = 0) -> Setting:
    return setting_of(load_config("tiny"), method, n, budget, seed)


def record(of: Setting, problem: Problem, **fields: Any) -> Record:
    return Record(of.key, problem.id, problem.digest, problem.answer, **fields)

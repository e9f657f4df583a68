"""A demo's report as plain JSON data."""

from __future__ import annotations

from typing import Any

from kvrescue.evaluation.bill import Bill
from kvrescue.evaluation.demo import DemoPlan, DemoReport, Example, Row, Setting
from kvrescue.evaluation.surroundings import versions
from kvrescue.types import SEPARATOR, CommittedStep, Solution

__all__ = ["as_data", "engines", "first_wrong_step"]


def as_data(report: DemoReport) -> dict[str, Any]:
    """The headline at the top level, then everything else.

    Accuracies, shares and recoveries are fractions; tokens are means per problem; `aborted` counts
    the base's aborted candidates over all problems.
    """
    return {
        **_setting(report.headline),
        "example": None if report.example is None else _example(report.example),
        "settings": [_setting(setting) for setting in report.settings],
        "helper_only": [_row(row) for row in report.helper_only],
        "sweep": [_setting(setting) for setting in report.sweep],
        "engines": engines(report.plan),
        "seed": report.plan.seed,
        "seconds": round(report.seconds, 1),
        "versions": versions(),
    }


def engines(plan: DemoPlan) -> dict[str, str]:
    """What the proposers ran on: the kinds of their policies."""
    config = plan.configs[plan.budget]
    return {name: section.policy.kind for name, section in config.proposers.items()}


def first_wrong_step(bill: Bill, solution: Solution) -> int | None:
    """Number of the first step that is wrong, None when all are right."""
    history: list[str] = []
    for number, step in enumerate(solution.steps):
        text = step.text.removesuffix(SEPARATOR)
        if not bill.check_step(history, text):
            return number
        history.append(text)
    return None


def _setting(setting: Setting) -> dict[str, Any]:
    interval = setting.recovery_interval
    return {
        "problems": len(setting.rows[0].correct),
        "budget": setting.budget,
        "window": setting.window,
        "n": setting.n,
        "recovery": _rounded(setting.recovery),
        "recovery_ci": None if interval is None else [round(bound, 4) for bound in interval],
        "rows": [_row(row) for row in setting.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "method": row.method,
        "n": row.n,
        "accuracy": round(row.accuracy, 4),
        "accuracy_ci": [round(bound, 4) for bound in row.interval],
        "base_tokens": round(row.base_tokens, 1),
        "helper_tokens": round(row.helper_tokens, 1),
        "aborted": row.aborted,
        "helper_share": _rounded(row.helper_share),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _example(example: Example) -> dict[str, Any]:
    return {
        "index": example.index,
        "question": example.bill.question,
        "answer": str(example.bill.answer),
        "budget": example.budget,
        "n": 1,
        "methods": {
            method: {
                "answer": solution.answer,
                "correct": example.bill.grade(solution.text),
                "stop": solution.stop.value,
                "first_wrong_step": first_wrong_step(example.bill, solution),
                "steps": [_step(step) for step in solution.steps],
            }
            for method, solution in example.solutions.items()
        },
    }


def _step(step: CommittedStep) -> dict[str, Any]:
    candidates = []
    for candidate, score in zip(step.candidates, step.scores, strict=True):
        verdict = candidate.verdict
        candidates.append(
            {
                "source": candidate.policy,
                "text": candidate.text,
                "score": _rounded(score),
                "aborted": None
                if verdict is None
                else {"detector": verdict.detector, "reason": verdict.reason},
            }
        )
    return {
        "source": step.candidate.policy,
        "text": step.text,
        "score": _rounded(step.score),
        "candidates": candidates,
    }

"""Grading: is the answer of a solution the right one?

The answer is the content of the last box (`kvrescue.answers`). `Grader` compares it by the paper's
rule and by math-verify, in worker processes; `grade_exact` compares whole numbers in this one.
"""

from __future__ import annotations

from kvrescue.evaluation.grading.disagreements import Disagreements
from kvrescue.evaluation.grading.exact import grade_exact
from kvrescue.evaluation.grading.grade import Grade, GradingRule, RuleName, Trouble, TroubleKind
from kvrescue.evaluation.grading.pool import Grader

__all__ = [
    "Disagreements",
    "Grade",
    "Grader",
    "GradingRule",
    "RuleName",
    "Trouble",
    "TroubleKind",
    "grade_exact",
]

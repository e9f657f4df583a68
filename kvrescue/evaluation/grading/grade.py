"""Grade: what became of one answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

__all__ = ["MATH_RULES", "Grade", "GradingRule", "RuleName", "Trouble", "TroubleKind"]


class GradingRule(StrEnum):
    """How the answers of a set of problems are graded.

    `EXACT` compares whole numbers, in this process; `MATH` compares mathematics by two rules, in
    worker processes.
    """

    EXACT = "exact"
    """Whole numbers."""
    MATH = "math"
    """Mathematics, by the paper's rule and by math-verify."""


class RuleName(StrEnum):
    """The rules that `GradingRule.MATH` applies."""

    PAPER = "paper"
    """What published figures of Qwen2.5-Math come from."""
    MATH_VERIFY = "math_verify"
    """Hugging Face's library."""


MATH_RULES: Final = tuple(RuleName)
"""Those of `GradingRule.MATH`."""


class TroubleKind(StrEnum):
    """Why a rule came to no verdict; the answer then counts as wrong by that rule."""

    TIMEOUT = "timeout"
    """It took too long."""
    MEMORY = "memory"
    """It needed too much memory."""
    DIED = "died"
    """The worker process ended: a stack that overflowed in C, or somebody killed it."""
    ERROR = "error"
    """The rule raised."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A rule that came to no verdict.

    Attributes:
        rule: which one.
        kind: why.
        detail: the same for people.
    """

    rule: RuleName
    kind: TroubleKind
    detail: str


@dataclass(frozen=True, slots=True)
class Grade:
    """What became of one answer.

    Attributes:
        grading: how it was graded.
        answer: the content of the last box; None where there is none, or it was never closed.
        gold: the right answer.
        exact: the verdict of `GradingRule.EXACT`, else None.
        paper: the verdict of the paper's rule, else None.
        math_verify: the verdict of math-verify, else None.
        troubles: rules that came to no verdict, and are False for it.
    """

    grading: GradingRule
    answer: str | None
    gold: str
    exact: bool | None = None
    paper: bool | None = None
    math_verify: bool | None = None
    troubles: tuple[Trouble, ...] = ()

    @property
    def correct(self) -> bool:
        """The verdict to report: that of the paper's rule, or of whole numbers."""
        return bool(self.exact if self.grading is GradingRule.EXACT else self.paper)

    @property
    def timed_out(self) -> bool:
        """Whether a rule ran into its time limit."""
        return any(trouble.kind is TroubleKind.TIMEOUT for trouble in self.troubles)

    @property
    def disagree(self) -> bool:
        """Whether the two rules for mathematics came to different verdicts."""
        return self.paper is not self.math_verify

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "grading": self.grading.value,
            "answer": self.answer,
            "gold": self.gold,
            "correct": self.correct,
            "exact": self.exact,
            "paper": self.paper,
            "math_verify": self.math_verify,
            "timed_out": self.timed_out,
            "troubles": [
                {"rule": t.rule.value, "kind": t.kind.value, "detail": t.detail}
                for t in self.troubles
            ],
        }

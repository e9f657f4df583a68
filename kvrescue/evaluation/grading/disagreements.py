"""Disagreements: where the paper's rule and math-verify part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvrescue.evaluation.grading.grade import Grade, GradingRule

__all__ = ["Disagreements"]


@dataclass(frozen=True, slots=True)
class Disagreements:
    """How two rules judge the same answers.

    Attributes:
        both_right: answers that both find right.
        both_wrong: answers that both find wrong, or that were none.
        paper_only: those that only the paper's rule finds right.
        math_verify_only: those that only math-verify finds right.
        troubled: those, of all four kinds, where a rule came to no verdict.
    """

    both_right: int
    both_wrong: int
    paper_only: tuple[Grade, ...]
    math_verify_only: tuple[Grade, ...]
    troubled: tuple[Grade, ...]

    @classmethod
    def of(cls, grades: Iterable[Grade]) -> Disagreements:
        """Sort grades; those that were not graded as mathematics are left out."""
        both = [grade for grade in grades if grade.grading is GradingRule.MATH]
        return cls(
            both_right=sum(bool(g.paper and g.math_verify) for g in both),
            both_wrong=sum(not (g.paper or g.math_verify) for g in both),
            paper_only=tuple(g for g in both if g.paper and not g.math_verify),
            math_verify_only=tuple(g for g in both if g.math_verify and not g.paper),
            troubled=tuple(g for g in both if g.troubles),
        )

    @property
    def total(self) -> int:
        """How many answers there are."""
        return self.both_right + self.both_wrong + self.count

    @property
    def count(self) -> int:
        """How many the rules disagree on."""
        return len(self.paper_only) + len(self.math_verify_only)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(answer, gold) of every disagreement, the paper's first."""
        found = (*self.paper_only, *self.math_verify_only)
        return tuple((grade.answer or "", grade.gold) for grade in found)

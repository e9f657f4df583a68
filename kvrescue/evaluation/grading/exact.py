"""Exact grading: whole numbers, as the tiny trio's problems have them."""

from __future__ import annotations

import re
from typing import Final

from kvrescue.answers import extract_answer
from kvrescue.errors import ConfigError
from kvrescue.evaluation.grading.grade import Grade, GradingRule

__all__ = ["grade_exact"]

_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,4000}\Z")
"""Longer ones are not read: Python refuses to, and no answer is one."""


def grade_exact(response: str, gold: str | int) -> Grade:
    """Grade by equality of whole numbers: cheap, in this process, without any extra.

    Args:
        response: a solution; the content of its last box is its answer.
        gold: the right answer.

    Raises:
        ConfigError: `gold` is no whole number.
    """
    wanted = _whole(str(gold))
    if wanted is None:
        raise ConfigError(f"gold = {gold!r}: expected a whole number, or grade by the rule 'math'")
    answer = extract_answer(response)
    right = answer is not None and _whole(answer) == wanted
    return Grade(GradingRule.EXACT, answer, str(gold), exact=right)


def _whole(text: str) -> int | None:
    plain = text.strip()
    return int(plain) if _WHOLE.match(plain) else None

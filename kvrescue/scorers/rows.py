"""Rows of a pooling model: one [p(wrong), p(right)] per place; anything else is an error.

A reward model that is served in another way than it is asked (the wrong kind of pooling, another
tag, an embedding model) answers all the same, with no rows or with others.
"""

from __future__ import annotations

import math
from typing import Final

from kvrescue.errors import ScorerError

__all__ = ["positive"]

_SLACK: Final = 0.02
"""By which two probabilities of a head in bfloat16 may miss 1."""


def positive(rows: object, expected: int, *, what: str, advice: str) -> float:
    """The probability of label 1 in the last row.

    Args:
        rows: what a model returned for one text.
        expected: how many rows it has to have.
        what: of which model, for the error ("tiny/prm").
        advice: how to get the right number of rows.

    Raises:
        ScorerError: not a list of `expected` rows of two probabilities.
    """
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        found = f"a list of {len(rows)}" if isinstance(rows, list) else _shown(rows)
        raise ScorerError(f"{what}: expected one row per place, found {found}; {advice}")
    widths = {len(row) for row in rows}
    if widths - {2}:
        raise ScorerError(
            f"{what}: expected two numbers per row, found {max(widths - {2})}: this is no reward "
            f"model with two labels; {advice}"
        )
    if len(rows) != expected:
        number = str(len(rows)) if rows else "none at all (data: [])"
        raise ScorerError(f"{what}: rows expected: {expected}, found: {number}; {advice}")
    row = rows[-1]
    if not all(isinstance(p, int | float) and abs(p) < math.inf for p in row):  # NaN is not less
        raise ScorerError(
            f"{what} returned the probabilities {_shown(row)}: NaN or infinite; check the "
            "checkpoint and the dtype"
        )
    if not all(0.0 <= p <= 1.0 for p in row) or abs(sum(row) - 1.0) > _SLACK:
        raise ScorerError(
            f"{what} returned {_shown(row)}, which are not probabilities; do not turn its "
            "activation off (use_activation, logit_mean, logit_sigma in the pooler's configuration)"
        )
    return float(row[1])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Plain numbers, and when two of them count as equal."""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Final

__all__ = ["PERCENT", "TOLERANCE", "is_close", "is_close_or_percent", "plain_number"]

TOLERANCE: Final = Decimal("1e-4")
"""Relative, of the larger one."""

PERCENT: Final = 100
"""Numbers also count as equal when one is this many times the other."""

_NUMBER: Final = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,9})?\Z")
_EXACT: Final = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation])


def plain_number(text: str) -> Decimal | None:
    """The value of a decimal number, commas ignored, or None.

    No fraction, root or constant: those are compared as expressions.
    """
    if _NUMBER.match(text) is None:
        return None
    return Decimal(text.replace(",", ""))


def is_close(a: Decimal, b: Decimal) -> bool:
    """Whether two numbers differ by no more than `TOLERANCE` of the larger one."""
    difference = _EXACT.subtract(a, b).copy_abs()
    larger = max(a.copy_abs(), b.copy_abs())
    return difference <= _EXACT.multiply(TOLERANCE, larger)


def is_close_or_percent(a: Decimal, b: Decimal) -> bool:
    """`is_close`, or as per cent and share: 50 is 0.5, and 0.5 is 50."""
    larger_a, larger_b = _EXACT.multiply(a, PERCENT), _EXACT.multiply(b, PERCENT)
    return is_close(a, b) or is_close(larger_a, b) or is_close(a, larger_b)

"""Equality of expressions: latex2sympy reads them, sympy compares them.

Nothing here limits time or memory: a worker process does, which may be killed.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any, Final, ParamSpec

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

from kvrescue.evaluation.grading.numbers import TOLERANCE

__all__ = ["same_equation", "same_expression"]

_READING: Final = ConversionConfig(lowercase_symbols=False)
_WORD: Final = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_IN_A_BASE: Final = re.compile(r"\d_")
_NEARLY_ZERO: Final = 1e-9
_UNDEFINED: Final = (sympy.zoo, sympy.nan)

P = ParamSpec("P")


def _false_where_unread(compare: Callable[P, bool]) -> Callable[P, bool]:
    """Parser and sympy raise what they like over texts that are no mathematics (`TypeError`,
    `NotImplementedError`, `ZeroDivisionError`, recursion): such texts are equal to nothing."""

    @functools.wraps(compare)
    def compared(*args: P.args, **kwargs: P.kwargs) -> bool:
        try:
            return compare(*args, **kwargs)
        except MemoryError:  # says something about the worker, too
            raise
        except Exception:
            return False

    return compared


@_false_where_unread
def same_expression(a: str, b: str) -> bool:
    """Whether two normalised texts are one expression in other forms.

    Numbers count as equal within the relative tolerance of `numbers`, but for those with pi or e:
    a decimal never stands for these. False where a text cannot be read, has no defined value
    (`1/0`, `0/0`), is a word, or is a numeral in another base (which the reader would take for a
    decimal one).
    """
    left, right = _read(a), _read(b)
    if left is None or right is None:
        return False
    return _same(left, right) and _defined(left) and _defined(right)


@_false_where_unread
def same_equation(a: tuple[str, str], b: tuple[str, str]) -> bool:
    """Whether two equations, as (left, right), have the same solutions: one is a multiple of the
    other, whichever side its terms stand on."""
    sides = [_read(side) for side in (*a, *b)]
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return False
    left, right, other_left, other_right = sides
    return _same_zeros(left - right, other_left - other_right) and all(map(_defined, sides))


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, sympy.core.relational.Relational):
        return _same_relation(left, right)
    if left == right:
        return True
    if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
        return False
    return _is_zero(left - right) or _close(left, right)


def _defined(found: Any) -> bool:
    """Whether nothing divides by what turns out to be zero, such as `x-x` in another form."""
    powers = found.atoms(sympy.Pow)
    divisors = (power.base for power in powers if power.exp.could_extract_minus_sign())
    return not any(base.args and _is_zero(base) for base in divisors)


def _read(text: str) -> Any:
    """The sympy object of a text; None for one without a value, or with an undefined one."""
    if not text or _WORD.search(text) or _IN_A_BASE.search(text):
        return None
    found = latex2sympy(text, conversion_config=_READING)
    if isinstance(found, sympy.Expr | sympy.core.relational.Relational):
        found = _decimals_as_fractions(found)
    # A truth is what is left of `1<2` and of `x=1/0`: it no longer says which of them it was.
    if not isinstance(found, sympy.Basic) or isinstance(found, sympy.logic.boolalg.BooleanAtom):
        return None
    return None if found.has(*_UNDEFINED) else found


def _decimals_as_fractions(found: Any) -> Any:
    exact = {number: sympy.Rational(str(number)) for number in found.atoms(sympy.Float)}
    return found.xreplace(exact).doit() if exact else found.doit()


def _is_zero(difference: Any) -> bool:
    """Whether an expression vanishes, with `i` as a symbol or as the imaginary unit."""
    for form in (difference, difference.subs(sympy.Symbol("i"), sympy.I)):
        if form.equals(0) or sympy.simplify(form) == 0:
            return True
        if not form.has(sympy.Symbol("i")):
            break
    return False


def _close(left: Any, right: Any) -> bool:
    """Whether two numbers are close enough; those with pi or e must be equal."""
    if left.free_symbols or right.free_symbols or left.has(sympy.pi, sympy.E, sympy.exp):
        return False
    if right.has(sympy.pi, sympy.E, sympy.exp):
        return False
    values = [complex(side.evalf(20)) for side in (left, right)]
    if any(abs(value.imag) > _NEARLY_ZERO for value in values):
        return False
    return math.isclose(values[0].real, values[1].real, rel_tol=float(TOLERANCE))


def _same_zeros(left: Any, right: Any) -> bool:
    if _is_zero(left - right) or _is_zero(left + right):
        return True
    if left == 0 or right == 0:
        return False
    ratio = sympy.simplify(left / right)
    return bool(ratio.is_number and ratio.is_finite and ratio != 0)


def _same_relation(left: Any, right: Any) -> bool:
    if not isinstance(right, sympy.core.relational.Relational):
        return False
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        return _same_zeros(left.lhs - left.rhs, right.lhs - right.rhs)
    if left.canonical == right.canonical:
        return True
    other = right if left.rel_op == right.rel_op else right.reversed
    if left.rel_op != other.rel_op:
        return False
    return _is_zero((left.lhs - left.rhs) - (other.lhs - other.rhs))

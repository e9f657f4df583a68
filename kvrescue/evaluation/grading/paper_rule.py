"""The rule of the paper's accuracies, as described of the grader of Qwen2.5-Math.

Equal are: texts that are the same but for case; numbers within a relative 1e-4, also when one is
100 times the other; lists and tuples entry by entry, with whatever brackets; sets in any order;
matrices cell by cell; equations; expressions that sympy finds equal. It is lenient on purpose, so
that figures compare with published ones: `(1,2)` is `[1,2]`, and 50 is 0.5.

The code is our own and differs where the original destroys answers or misreads them: see
docs/grading.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from kvrescue.evaluation.grading.normalise import normalise
from kvrescue.evaluation.grading.numbers import is_close_or_percent, plain_number
from kvrescue.evaluation.grading.structure import (
    Parts,
    both_signs,
    by_name,
    equation,
    parts,
    rows,
    without_subject,
)
from kvrescue.evaluation.grading.symbolic import same_equation, same_expression

__all__ = ["paper_equal"]

_CHOICE: Final = re.compile(r"\(?([A-E])\)?(?:[.:)].*)?\Z", re.DOTALL)


def paper_equal(answer: str, gold: str) -> bool:
    """Whether an answer, as extracted from its box, is the gold answer.

    It may take for ever and all memory: call it through `Grader` where answers are not trusted.
    """
    try:
        return _equal(normalise(answer), normalise(gold))
    except RecursionError:  # brackets inside brackets by the thousand: no answer is one
        return False


def _equal(a: str, b: str) -> bool:
    """Equality of normalised texts."""
    if not a or not b:
        return False
    if a.casefold() == b.casefold() or _same_choice(a, b):
        return True
    numbers = plain_number(a), plain_number(b)
    if numbers[0] is not None and numbers[1] is not None:
        if "," in a and "," in b and not _grouped(a, b):
            return _same_parts(parts(a), parts(b))
        return is_close_or_percent(numbers[0], numbers[1])
    matrices = rows(a), rows(b)
    if matrices[0] is not None and matrices[1] is not None:
        return _same_rows(matrices[0], matrices[1])
    if signs := _with_signs(a, b):
        return _same_parts(*signs)
    sides = equation(a), equation(b)
    if sides[0] is not None and sides[1] is not None and same_equation(sides[0], sides[1]):
        return True
    shorter = without_subject(a), without_subject(b)
    if shorter != (a, b):
        return _equal(*shorter)
    taken_apart = parts(a), parts(b)
    if any(taken_apart):
        return _same_parts(taken_apart[0] or _alone(a), taken_apart[1] or _alone(b)) or (
            _is_product(a, b) and same_expression(a, b)
        )
    return same_expression(a, b)


_GROUPS: Final = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?\Z")


def _grouped(*numbers: str) -> bool:
    """Whether the commas of all stand between thousands."""
    return all(_GROUPS.match(number) for number in numbers)


def _same_choice(answer: str, gold: str) -> bool:
    """Letters of multiple choice: `(B)`, `B.` and `B) 4` are `B`."""
    letters = _CHOICE.match(answer), _CHOICE.match(gold)
    if letters[0] is None or letters[1] is None:
        return False
    one_is_bare = any(len(text.strip("()")) == 1 for text in (answer, gold))
    return one_is_bare and letters[0][1] == letters[1][1]


def _alone(text: str) -> Parts:
    return Parts((text,), ordered=True)


def _same_parts(a: Parts | None, b: Parts | None) -> bool:
    if a is None or b is None or len(a.entries) != len(b.entries):
        return False
    named, others = by_name(a.entries), by_name(b.entries)
    if named is not None and others is not None and named.keys() == others.keys():
        return all(_equal(said, others[name]) for name, said in named.items())
    if a.ordered and b.ordered:
        return all(_equal(x, y) for x, y in zip(a.entries, b.entries, strict=True))
    return _matched(a.entries, b.entries)


def _matched(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether entries pair off in some order.

    Equality with tolerances is no equivalence, so a first fit may be wrong: pairs are given up
    again where another entry needs its partner (Kuhn's augmenting paths).
    """
    fits = [[column for column, other in enumerate(b) if _equal(entry, other)] for entry in a]
    partner: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column in fits[row]:
            if column not in tried:
                tried.add(column)
                if column not in partner or place(partner[column], tried):
                    partner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(a)))


def _same_rows(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> bool:
    if [len(row) for row in a] != [len(row) for row in b]:
        return False
    cells = zip((c for row in a for c in row), (c for row in b for c in row), strict=True)
    return all(_equal(x, y) for x, y in cells)


def _with_signs(a: str, b: str) -> tuple[Parts, Parts] | None:
    """Plus-minus written out, where at least one side has it."""
    signs = both_signs(a), both_signs(b)
    if signs == (None, None):
        return None
    sides = []
    for text, expanded in zip((a, b), signs, strict=True):
        entries = parts(text)
        found = expanded or (entries.entries if entries else (text,))
        sides.append(Parts(found, ordered=False))
    return sides[0], sides[1]


def _is_product(a: str, b: str) -> bool:
    """Whether brackets may belong to arithmetic rather than around a tuple: no commas at all."""
    return "," not in a and "," not in b

"""Answers of several parts: lists, tuples, sets, intervals and their unions, matrices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Parts", "both_signs", "by_name", "equation", "parts", "rows", "without_subject"]

_OPENING: Final = "([{"
_CLOSING: Final = ")]}"


@dataclass(frozen=True, slots=True)
class Parts:
    """An answer taken apart.

    Attributes:
        entries: the parts, two at least unless there were brackets.
        ordered: False for a set, whose entries may come in any order.
    """

    entries: tuple[str, ...]
    ordered: bool


def parts(text: str) -> Parts | None:
    """The entries of a list, tuple, interval, set or union; None for anything else.

    Which brackets an interval has is not told: the rule ignores them.
    """
    if len(sets := split(text, r"\cup")) > 1:
        return Parts(sets, ordered=False)
    inner, braces = _inside(text)
    entries = split(inner, ",")
    if braces:
        return Parts(entries, ordered=False)
    if len(entries) > 1 or inner != text:
        return Parts(entries, ordered=True)
    return None


def _inside(text: str) -> tuple[str, bool]:
    """What the brackets around the whole text hold, and whether they are a set's."""
    for opening, closing in ((r"\{", r"\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        if text.startswith(opening) and text.endswith(closing) and _one_pair(text):
            return text[len(opening) : len(text) - len(closing)], opening == r"\{"
    return text, False


def _one_pair(text: str) -> bool:
    """Whether the first bracket closes at the very end, as in `(1,2)` and unlike `(1)(2)`."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0 and character in _CLOSING:
            return position == len(text) - 1
    return False


def split(text: str, separator: str) -> tuple[str, ...]:
    """The pieces between separators outside all brackets; a bracket without partner stays one."""
    pieces, start, depth = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0 and text.startswith(separator, position):
            pieces.append(text[start:position].strip())
            start = position + len(separator)
    pieces.append(text[start:].strip())
    return tuple(pieces)


_MATRIX: Final = re.compile(
    r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[lcr|]*\})?(.*?)\\end\{\1\}\Z", re.DOTALL
)


def rows(text: str) -> tuple[tuple[str, ...], ...] | None:
    """The cells of a matrix, row by row, whatever its brackets; None where it is none."""
    found = _MATRIX.match(text)
    if found is None:
        return None
    lines = [line for line in re.split(r"\\\\", found[2]) if line.strip()]
    return tuple(tuple(cell.strip() for cell in line.split("&")) for line in lines)


_SUBJECT: Final = re.compile(
    r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{?\w+\}?|\([a-zA-Z](?:,[a-zA-Z])*\)|[a-zA-Z])?"
    r"(?:=(?!=)|\\in(?![a-zA-Z]))"
)


def without_subject(text: str) -> str:
    """What `x=...`, `f(x)=...` or `x\\in...` says of its subject; the text where it has none."""
    found = _SUBJECT.match(text)
    if found is None or "=" in (rest := text[found.end() :].strip()) or not rest:
        return text
    return rest


def by_name(entries: Sequence[str]) -> dict[str, str] | None:
    """What each of `x=1,y=2` says of its subject; None unless all have one, each another."""
    found = {}
    for entry in entries:
        rest = without_subject(entry)
        if rest == entry:
            return None
        found[entry[: -len(rest)].strip().casefold()] = rest
    return found if len(found) == len(entries) else None


def equation(text: str) -> tuple[str, str] | None:
    """Both sides of an equation, or None."""
    left, sign, right = text.partition("=")
    if not sign or not left or not right or "=" in right or left[-1] in "<>!:":
        return None
    return left, right


def both_signs(text: str) -> tuple[str, str] | None:
    """What an answer with one `\\pm` stands for, with plus and with minus; else None."""
    before, sign, after = text.partition(r"\pm")
    if not sign or r"\pm" in after or after[:1].isalpha():
        return None
    plus = "+" if before and before[-1] not in "([{,=" else ""
    after = after.lstrip()
    return f"{before}{plus}{after}", f"{before}-{after}"

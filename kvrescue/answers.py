"""The answer of a solution: the content of its last `\\boxed{...}` or `\\fbox{...}`."""

from __future__ import annotations

import re

__all__ = ["extract_answer", "why_no_answer"]

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_UNBRACED = re.compile(r"[-+]?\d[\d.,/]*|[a-zA-Z](?![a-zA-Z])")
"""What a box without braces may hold; anything else is talk about boxes."""


def extract_answer(text: str) -> str | None:
    """Content of the last box with balanced braces, stripped.

    None when there is no box, when the last one is never closed (the text was cut inside it, so an
    earlier box is not the answer), or when it is blank. Escaped braces belong to the content and
    need no partner. A box without braces holds the number or the letter after it (`\\boxed 7`);
    one with neither is no box, unless the text ends there.
    """
    return _last(text)[0]


def why_no_answer(text: str) -> str:
    """Why `extract_answer` finds none, in words; empty where it finds one."""
    return _last(text)[1]


_NONE, _OPEN, _EMPTY = "there is no box", "the last box is not closed", "the last box is empty"


def _last(text: str) -> tuple[str | None, str]:
    """The content of the last box, or why there is none."""
    for box in reversed(list(_BOX.finditer(text))):
        start = box.end()
        if start == len(text):
            return None, _OPEN
        if text[start] == "{":
            content = _braced(text, start + 1)
            return content or None, _OPEN if content is None else "" if content else _EMPTY
        # The command needs a space, or it would be another one (letters) or be broken (digits).
        if found := _UNBRACED.match(text, start):
            return found[0].rstrip(".,/"), ""
    return None, _NONE


def _braced(text: str, start: int) -> str | None:
    """What stands before the brace that closes the one before `start`; None where none does."""
    depth = 1
    position = start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start:position].strip()
        position += 1
    return None

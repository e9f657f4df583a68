"""The answer of a solution: the content of its last `\\boxed{...}`."""

from __future__ import annotations

import re

__all__ = ["extract_answer"]

_BOX = re.compile(r"\\boxed\s*\{")


def extract_answer(text: str) -> str | None:
    """Content of the last `\\boxed{...}` with balanced braces, stripped.

    None when there is no box, when the last one is never closed (the text was cut inside it, so an
    earlier box is not the answer), or when it is blank. Escaped braces belong to the content and
    need no partner.
    """
    starts = [box.end() for box in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    position = start = starts[-1]
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start:position].strip() or None
        position += 1
    return None

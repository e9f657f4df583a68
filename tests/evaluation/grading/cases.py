"""Answers to grade.

`golds.json` holds answers of our own in the shapes that gold answers of benchmarks have, awkward
ones among them. `pairs.json` holds (response, gold) with three verdicts: a human's, that of the
official grader of Qwen2.5-Math, and that of math-verify on the whole response, as they were found
by running both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Pair:
    """A response, a gold answer, and what three judges say of them."""

    response: str
    gold: str
    human: bool
    official: bool
    math_verify: bool
    note: str


GOLDS: list[str] = json.loads((_HERE / "golds.json").read_text())
PAIRS = [Pair(**entry) for entry in json.loads((_HERE / "pairs.json").read_text())]

NO_BOX = {
    "no box, 'the answer is'",
    "no box, last number",
    "no box, comma number",
    "unclosed box (truncated output)",
}
"""Notes of pairs without a closed box: no answer here, while both graders look elsewhere."""

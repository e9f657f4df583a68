"""Texts that detectors must be measured on: honest mathematics that repeats, and loops.

`tokenize` cuts text the way byte-pair vocabularies of the Qwen family start from: words with one
leading non-letter, single digits, short runs of punctuation, whitespace. No tokenizer is needed
here, only one whose steady state on a loop is a loop of ids.
"""

from __future__ import annotations

import random
import re

from kvrescue.detectors import TokenEvent

_PIECES = re.compile(r"[^\w\s]?[A-Za-z]+| [A-Za-z]+|[0-9]| ?[^\w\s]{1,4}|\n{1,2}|\s|.", re.DOTALL)


def tokenize(text: str) -> list[str]:
    pieces = _PIECES.findall(text)
    assert "".join(pieces) == text
    return pieces


def events(pieces: list[str], entropy: float = 0.5) -> list[TokenEvent]:
    """One event per piece; equal pieces get equal ids."""
    ids: dict[str, int] = {}
    return [TokenEvent(ids.setdefault(piece, len(ids)), piece, entropy) for piece in pieces]


def _identity(n: int) -> str:
    rows = (" & ".join(str(int(i == j)) for j in range(n)) for i in range(n))
    return "\\begin{pmatrix} " + " \\\\ ".join(rows) + " \\end{pmatrix}"


def _casework() -> str:
    return "\n".join(
        f"Case {k}: if $a = {k}$, then $b = {31 - k}$ and $ab = {k * (31 - k)}$."
        for k in range(1, 31)
    )


def _telescoping() -> str:
    return "S = " + " + ".join(
        f"\\left(\\frac{{1}}{{{k}}} - \\frac{{1}}{{{k + 1}}}\\right)" for k in range(1, 41)
    )


def _table() -> str:
    rows = (f"| {n} | {n * n} | {n**3} | {n * (n + 1) // 2} |" for n in range(1, 41))
    return "| n | n^2 | n^3 | T_n |\n|---|---|---|---|\n" + "\n".join(rows)


PROSE = (
    "We expand the product on the left and compare the coefficients of $x^2$ on both sides, which "
    "gives a linear system in $a$, $b$ and $c$. Solving it, $a + b = 7$ while $ab = 12$, so the "
    "pair is $(3, 4)$ or $(4, 3)$, and in either case the sum of the squares equals $25$. Let $M$ "
    "be the midpoint of the hypotenuse. Since the median to the hypotenuse is half as long, "
    "$CM = \\frac{5}{2}$. Hence the circle centred at $M$ passes through all three vertices, and "
    "its area is $\\frac{25\\pi}{4}$. It remains to subtract the triangle, whose area is $6$. To "
    "check this with coordinates, put $C$ at the origin, $A = (3, 0)$ and $B = (0, 4)$: the line "
    "$AB$ satisfies $4x + 3y = 12$, its distance from $C$ is $\\frac{12}{5}$, and twice the area "
    "divided by the hypotenuse gives the same. The remaining region consists of three circular "
    "segments, one on each side; the largest is a half disc, because its chord is a diameter. "
    "Adding the other two yields $\\frac{25\\pi}{8} - 6$, so everything together comes to "
    "$\\frac{25\\pi}{4} - 6$, which is about $13.63$. "
)
"""Over 1,000 characters without repetition."""

HONEST: dict[str, str] = {
    "prose": PROSE,
    "identity matrix, 20 rows": _identity(20),
    "identity matrix of 5 rows, 8 times": " = ".join(["A^{-1} A = " + _identity(5)] * 8),
    "zero matrix, 12 rows": " \\\\ ".join([" & ".join("0" * 12)] * 12),
    "sum of 80 halves": " + ".join(["\\frac{1}{2}"] * 80) + " = 40",
    "sum of 12 halves": " + ".join(["\\frac{1}{2}"] * 12) + " = 6",
    "1/7 to 900 places": "1/7 = 0." + "142857" * 150,
    "1/7 to 60 places": "1/7 = 0." + "142857" * 10,
    "10^200 in full": "10^{200} = 1" + "0" * 200,
    "10^100 in full": "10^{100} = 1" + "0" * 100,
    "3^1000 in full": f"3^{{1000}} = {3**1000} = 3^{{500}} \\cdot {3**500}",
    "casework list": _casework(),
    "telescoping sum": _telescoping(),
    "table": _table(),
    "64 binary words": ", ".join(f"{n:06b}" for n in range(64)) + "; in reverse: "
    + ", ".join(f"{n:06b}"[::-1] for n in range(64)),
    "row of 60 dashes": "-" * 60,
}  # fmt: skip


def prose_loop(period: int, chars: int) -> str:
    """`period` characters of prose, repeated to about `chars` characters."""
    block = PROSE[:period]
    return block * -(-chars // period)


def shuffled_words(count: int, seed: int = 7) -> str:
    words = re.findall(r"[A-Za-z]{3,}", PROSE)
    generator = random.Random(seed)
    return " ".join(generator.choice(words) for _ in range(count))


LOOPS: dict[str, str] = {
    "boxed answer x 50": "I'll use \\boxed{460}.\n" * 50,
    "newlines": "\n\n" * 400,
    "one word": "the " * 400,
    "loop of 60 characters": prose_loop(60, 1600),
    "loop of 150 characters": prose_loop(150, 1600),
    "loop of 180 characters": prose_loop(180, 1600),
    "loop of 300 characters": prose_loop(300, 1600),
    "loop with a counter": "".join(
        f"Step {k}: we simplify the expression and get the same result. " for k in range(1, 41)
    ),
    "long loop with a counter": "".join(
        f"Step {k}: {PROSE[:170]}" for k in range(1, 12)
    ),
    "word salad": shuffled_words(400),
}  # fmt: skip

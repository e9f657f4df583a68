"""Which detector fires on which text, where and with what value: facts, not wishes.

Every text of the corpus must be in the table. `gzip` is (char_position, ratio) at its verdict,
`ngram` is (position, period); None is silence. Entropy is not a property of a text, so it has no
column. Positions beyond 512 tokens lie outside the paper's step limit.

The flagged honest texts are the price of the defaults. The candidate is lost, not the
trajectory: unscreened proposers and the other candidates remain.
"""

from __future__ import annotations

import re
import zlib

import pytest

from kvrescue.detectors import GzipDetector, NgramDetector
from tests.detectors.corpus import HONEST, LOOPS, events, tokenize
from tests.detectors.matrix import read

Gzip = tuple[int, float] | None
Ngram = tuple[int, int] | None

FACTS: dict[str, tuple[Gzip, Ngram]] = {
    # Honest, silent.
    "prose": (None, None),
    "sum of 12 halves": (None, None),
    "1/7 to 60 places": (None, None),
    "10^100 in full": (None, None),
    "3^1000 in full": (None, None),
    "casework list": (None, None),
    "telescoping sum": (None, None),
    "table": (None, None),
    "64 binary words": (None, None),
    "row of 60 dashes": (None, None),
    # Honest, flagged.
    "identity matrix, 20 rows": ((800, 0.1088), None),
    "identity matrix of 5 rows, 8 times": ((800, 0.1087), (268, 89)),
    "zero matrix, 12 rows": (None, (128, 36)),
    "sum of 80 halves": ((800, 0.0525), (129, 8)),
    "1/7 to 900 places": ((800, 0.0512), (135, 6)),
    "10^200 in full": (None, (138, 1)),
    # Loops, found.
    "boxed answer x 50": ((800, 0.0638), (128, 11)),
    "newlines": ((800, 0.0350), (128, 1)),
    "one word": ((800, 0.0387), (129, 1)),
    "loop of 60 characters": ((800, 0.0988), (129, 10)),
    "loop of 150 characters": ((880, 0.1787), (129, 41)),
    "loop of 180 characters": (None, (172, 57)),
    "loop of 300 characters": (None, (289, 96)),
    "loop with a counter": ((800, 0.1487), None),
    # Degenerate, missed by both.
    "long loop with a counter": (None, None),
    "word salad": (None, None),
}

CORPUS = {**HONEST, **LOOPS}


def test_every_text_has_its_facts() -> None:
    assert set(FACTS) == set(CORPUS)


@pytest.mark.skipif("ng" in zlib.ZLIB_RUNTIME_VERSION, reason="measured with stock zlib")
@pytest.mark.parametrize("name", CORPUS)
def test_gzip(name: str) -> None:
    verdict = read(GzipDetector(), events(tokenize(CORPUS[name])))
    found = verdict and (verdict.char_position, pytest.approx(verdict.value, abs=1e-4))
    assert found == FACTS[name][0]


@pytest.mark.parametrize("name", CORPUS)
def test_ngram(name: str) -> None:
    verdict = read(NgramDetector(), events(tokenize(CORPUS[name])))
    found = None
    if verdict is not None:
        pattern = re.search(r"pattern of (\d+)", verdict.reason)
        assert pattern
        found = (verdict.position, int(pattern[1]))
    assert found == FACTS[name][1]

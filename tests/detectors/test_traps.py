"""The method's known traps and users' reports on runaways, as tests.

T1 to T6 are findings about the detectors as the paper gives them; "report" tests replay inputs
that users of inference engines met. Measured numbers hold for stock zlib.
"""

from __future__ import annotations

import gzip
import math
import random
import zlib

import pytest

from kvrescue.detectors import (
    DetectorBank,
    EntropyDetector,
    GzipDetector,
    NgramDetector,
    Source,
    TokenEvent,
)
from kvrescue.detectors.gzip import gzip_bytes, gzip_ratio
from kvrescue.errors import DetectorError
from kvrescue.types import Verdict
from tests.detectors.corpus import HONEST, LOOPS, PROSE, events, prose_loop, tokenize
from tests.detectors.matrix import read

STEP = 512
"""The paper's token limit of a step."""

stock_zlib = pytest.mark.skipif(
    "ng" in zlib.ZLIB_RUNTIME_VERSION, reason="sizes were measured with stock zlib"
)


def whole_bank(stream: list[TokenEvent]) -> Verdict | None:
    bank = DetectorBank([EntropyDetector(), GzipDetector(), NgramDetector()])
    for event in stream:
        if verdict := bank.update(event):
            return verdict
    return None


# T1: the paper's threshold is dead on a server's log-probabilities.


def test_t1_top_20_entropy_never_reaches_seven_nats() -> None:
    uniform = [1 / 20] * 20
    entropy = -math.fsum(p * math.log(p) for p in uniform)
    assert entropy == pytest.approx(2.996, abs=1e-3)
    stream = events(["word"] * 100, entropy)
    assert read(EntropyDetector(), stream) is None
    with pytest.raises(DetectorError, match=r"3\.00"):
        EntropyDetector().check(Source(151_936, STEP, "top", support=20))
    assert read(EntropyDetector(threshold=2.5), stream) is not None


# T2: the window is characters.


def test_t2_800_are_characters_and_most_steps_stay_below() -> None:
    loop = tokenize(LOOPS["boxed answer x 50"])
    verdict = read(GzipDetector(), events(loop))
    assert verdict is not None
    assert verdict.char_position == 800
    assert verdict.position == 399  # tokens, about two characters each here
    mean_step = events(loop[:25])  # 673 tokens in 27 steps
    assert read(GzipDetector(), mean_step) is None


# T3: long periods.


@stock_zlib
@pytest.mark.parametrize("period", [20, 60, 100, 130, 150])
def test_t3_short_periods_are_found_by_both(period: int) -> None:
    stream = events(tokenize(prose_loop(period, 1900)))
    assert read(GzipDetector(), stream) is not None
    assert read(NgramDetector(), stream) is not None


@stock_zlib
@pytest.mark.parametrize("period", [180, 220, 300, 350, 400])
def test_t3_long_periods_are_found_by_ngram_alone(period: int) -> None:
    stream = events(tokenize(prose_loop(period, 1900)))
    assert read(GzipDetector(), stream) is None
    verdict = read(NgramDetector(), stream)
    assert verdict is not None
    assert verdict.position <= STEP


# T4 is the table of test_corpus.py.


# T5: a loop across steps.


def test_t5_the_same_short_step_again_and_again_is_invisible() -> None:
    step = events(tokenize("So the answer is again $\\boxed{460}$.\n\n"))
    assert all(whole_bank(step) is None for _ in range(256))
    assert whole_bank(step * 256) is not None


# T6: the compressor.


@stock_zlib
def test_t6_golden_bytes() -> None:
    golden = (
        "1f8b0800000000000203"  # header: deflate, mtime 0, level 9, Unix
        "f354cfc951282d4e558849caaf484da9363133a8d553f01c151d151d15058a0200"
        "c32cc41a20030000"  # CRC, 800 bytes
    )
    data = ("I'll use \\boxed{460}. " * 60)[:800].encode()
    ours = bytearray(gzip_bytes(data))
    assert ours[9] in (3, 255)  # operating system: Unix or unknown
    ours[9] = 3
    assert ours.hex() == golden
    assert len(golden) // 2 == 51


@stock_zlib
def test_t6_zlib_and_other_levels_are_other_compressors() -> None:
    data = PROSE[:800].encode()
    size = len(gzip_bytes(data))
    assert size - len(zlib.compress(data, 9)) == 12
    assert len(gzip.compress(data, 1, mtime=0)) > size
    named_file = len(gzip_bytes(data)) + len("step.txt") + 1  # what `gzip FILE` would add
    assert named_file / 800 > gzip_ratio(PROSE[:800])


@stock_zlib
def test_t6_short_text_is_all_header_and_never_evaluated() -> None:
    assert gzip_ratio(PROSE[:24]) > 1.5
    assert gzip_ratio(PROSE[:100]) > 0.9
    assert gzip_ratio("a" * 24) > 0.18
    assert gzip_ratio(HONEST["10^200 in full"]) < 0.18  # below, were partial windows evaluated
    assert read(GzipDetector(), events(["a"] * 799)) is None
    assert read(GzipDetector(), events(["a"] * 800)) is not None


# Reports.


def test_report_36_a_boxed_answer_without_end() -> None:
    sentence = "I'll use \\boxed{460}."
    verdict = whole_bank(events(tokenize((sentence + " ") * 50)))
    assert verdict is not None
    assert verdict.detector == "ngram"
    assert verdict.position == 129  # 11.6 sentences; the step would have run on to 512
    assert read(GzipDetector(), events(tokenize(sentence * 50))) is not None


@pytest.mark.parametrize("pieces", [["\n\n"] * 400, ["\n"] * 800])
def test_report_37_endless_newlines(pieces: list[str]) -> None:
    stream = events(pieces)
    verdict = read(NgramDetector(), stream)
    assert verdict is not None
    assert verdict.position == 128
    verdict = read(GzipDetector(), stream)
    assert verdict is not None
    assert verdict.char_position == 800


def test_report_38_word_salad_is_seen_by_its_entropy_only() -> None:
    pieces = tokenize(LOOPS["word salad"])
    assert whole_bank(events(pieces, entropy=2.0)) is None
    verdict = whole_bank(events(pieces, entropy=9.5))
    assert verdict is not None
    assert verdict.detector == "entropy"
    assert verdict.position == 25


def test_report_38_shuffled_tokens() -> None:
    pieces = tokenize(PROSE * 2)
    random.Random(1).shuffle(pieces)
    assert read(GzipDetector(), events(pieces)) is None
    assert read(NgramDetector(), events(pieces)) is None


@stock_zlib
def test_report_40_a_loop_with_a_counter_is_seen_by_gzip_only() -> None:
    stream = events(tokenize(LOOPS["loop with a counter"]))
    assert read(NgramDetector(), stream) is None
    verdict = read(GzipDetector(), stream)
    assert verdict is not None
    assert verdict.char_position == 800


@stock_zlib
def test_report_40_near_variants_of_a_word() -> None:
    generator = random.Random(5)
    forms = [" items", " its", " it", " itemsThe", " item"]
    stream = events([generator.choice(forms) for _ in range(500)])
    assert read(NgramDetector(), stream) is None  # the forms vary at random
    verdict = read(GzipDetector(), stream)
    assert verdict is not None
    assert (verdict.char_position, verdict.value) == (1080, pytest.approx(0.179, abs=5e-4))


def test_report_40_near_variants_in_turn() -> None:
    forms = [" items", " its", " it", " itemsThe", " item"]
    verdict = read(NgramDetector(), events(forms * 100))
    assert verdict is not None
    assert verdict.position == 128


def test_honest_short_repetition_is_silent() -> None:
    for name in ("sum of 12 halves", "1/7 to 60 places", "10^100 in full", "row of 60 dashes"):
        assert whole_bank(events(tokenize(HONEST[name]))) is None

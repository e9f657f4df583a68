from __future__ import annotations

import codecs
import gzip
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.detectors import GzipDetector, Source, TokenEvent
from kvrescue.detectors.gzip import gzip_bytes, gzip_ratio
from kvrescue.errors import ConfigError, DetectorError
from tests.detectors.corpus import PROSE
from tests.detectors.matrix import read

QWEN = Source(vocab_size=151_936, max_step_tokens=512)


def stream(*pieces: str) -> list[TokenEvent]:
    return [TokenEvent(0, piece, 0.0) for piece in pieces]


def test_the_papers_options_are_the_defaults() -> None:
    detector = GzipDetector()
    assert (detector.threshold, detector.window_chars) == (0.18, 800)
    detector.check(QWEN)


@given(
    block=st.binary(min_size=1, max_size=400) | st.text("ab \\{}0", min_size=1).map(str.encode),
    size=st.integers(0, 5000),
)
@settings(max_examples=150)
def test_small_memory_gives_the_bytes_of_gzip_level_9(block: bytes, size: int) -> None:
    data = (block * (size // len(block) + 1))[:size]
    ours, theirs = bytearray(gzip_bytes(data)), bytearray(gzip.compress(data, 9, mtime=0))
    ours[9] = theirs[9] = 0  # the operating-system byte, which depends on the Python version
    assert ours == theirs
    assert gzip.decompress(gzip_bytes(data)) == data


@pytest.mark.parametrize("size", [249, 250, 251, 1022, 1023, 1786, 1787, 32_506, 32_507, 70_000])
def test_the_memory_fits_at_its_edges(size: int) -> None:
    data = bytes((n * n * 31 + n // 7) % 251 for n in range(size))
    assert len(gzip_bytes(data)) == len(gzip.compress(data, 9, mtime=0))


def test_a_repeat_at_the_far_end_of_the_text_is_still_in_reach() -> None:
    noise = bytes(byte % 64 for byte in random.Random(2).randbytes(1807))
    data = noise + noise[:40]
    assert len(gzip_bytes(data)) == len(gzip.compress(data, 9, mtime=0))
    assert len(gzip_bytes(data)) < len(gzip_bytes(noise)) + 20


def test_the_window_is_evaluated_once_full_and_then_on_the_grid() -> None:
    detector = GzipDetector(window_chars=100, stride_chars=30, threshold=0.3)
    assert read(detector, stream("a" * 99)) is None
    verdict = read(detector, stream(*"a" * 150))
    assert verdict is not None
    assert (verdict.position, verdict.char_position) == (100, 100)
    # 45 characters of noise leave the window only when it ends at 160, the third grid point.
    noise = PROSE[:45]
    verdict = read(detector, stream(*noise, *"a" * 200))
    assert verdict is not None
    assert verdict.char_position in (130, 160)
    assert verdict.position == verdict.char_position


def test_one_token_may_complete_several_windows() -> None:
    detector = GzipDetector(window_chars=100, stride_chars=10, threshold=0.3)
    whole = read(detector, stream(PROSE[:150] + "a" * 300))
    single = read(detector, stream(*(PROSE[:150] + "a" * 300)))
    assert whole is not None
    assert single is not None
    assert (whole.char_position, whole.value) == (single.char_position, single.value)
    assert whole.position == 1


def test_only_the_needed_tail_is_kept() -> None:
    state = GzipDetector(threshold=0.05).start()
    for n in range(3_000):
        state.update(TokenEvent(0, f" {n}", 0.0))
        assert len(state._tail) < 820  # type: ignore[attr-defined]


@st.composite
def text_in_two_splits(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    """A text, and twice its UTF-8 bytes cut anywhere and decoded as they come in."""
    block = draw(st.text("ab é数\N{GRINNING FACE}\n", min_size=1, max_size=12))
    head = draw(st.text("xyzé数", max_size=40))
    text = head + block * draw(st.integers(0, 20))
    data = text.encode()

    def split() -> list[str]:
        cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=30)))
        decoder = codecs.getincrementaldecoder("utf-8")()
        bounds = [0, *cuts, len(data)]
        return [decoder.decode(data[a:b]) for a, b in itertools.pairwise(bounds)]

    return text, split(), split()


@given(text_in_two_splits())
@settings(max_examples=150)
def test_token_splits_do_not_move_the_verdict(case: tuple[str, list[str], list[str]]) -> None:
    text, *splits = case
    detector = GzipDetector(window_chars=40, stride_chars=3, threshold=0.75)
    by_character = read(detector, stream(*text))
    for pieces in splits:
        verdict = read(detector, stream(*pieces))
        if by_character is None:
            assert verdict is None
            continue
        assert verdict is not None
        assert verdict.char_position == by_character.char_position == by_character.position
        assert verdict.value == by_character.value
        assert len("".join(pieces[: verdict.position])) >= verdict.char_position
        assert len("".join(pieces[: verdict.position - 1])) < verdict.char_position


def test_the_ratio_is_bytes_over_bytes() -> None:
    text = "数" * 800
    assert gzip_ratio(text) == len(gzip.compress(text.encode(), 9, mtime=0)) / 2400


def test_half_a_surrogate_pair_is_no_error() -> None:
    assert read(GzipDetector(window_chars=100), stream(*["\ud83d"] * 150)) is not None


def test_a_window_that_cannot_fill_is_refused() -> None:
    with pytest.raises(DetectorError, match="768 characters"):
        GzipDetector().check(Source(151_936, max_step_tokens=12))
    GzipDetector().check(Source(151_936, max_step_tokens=13))


@pytest.mark.parametrize(("window", "threshold"), [(100, 0.18), (800, 0.03), (24, 0.9)])
def test_a_threshold_below_the_compressors_floor_is_refused(window: int, threshold: float) -> None:
    detector = GzipDetector(window_chars=window, threshold=threshold, stride_chars=1)
    floor = len(gzip.compress(b"x" * window, 9, mtime=0)) / window
    with pytest.raises(DetectorError, match=f"{floor:.4f}"):
        detector.check(QWEN)
    assert read(detector, stream("x" * 3 * window)) is None


def test_the_compressors_floor_itself_is_out_of_reach() -> None:
    lowest = GzipDetector().lowest_ratio
    with pytest.raises(DetectorError, match="undercut"):
        GzipDetector(threshold=lowest).check(QWEN)
    GzipDetector(threshold=lowest + 1e-9).check(QWEN)
    assert read(GzipDetector(threshold=lowest + 1e-9), stream("x" * 800)) is not None


@given(st.text("abc 0{}\\", min_size=1, max_size=8), st.integers(1, 900))
def test_no_ascii_window_is_below_the_floor(block: str, window: int) -> None:
    text = (block * window)[:window]
    assert gzip_ratio(text) >= GzipDetector(window_chars=window, stride_chars=1).lowest_ratio


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0},
        {"threshold": -0.1},
        {"threshold": 1.5},
        {"threshold": math.nan},
        {"window_chars": 0},
        {"stride_chars": 0},
        {"window": 800},
    ],
)
def test_nonsense_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        GzipDetector(**options)


def test_a_stride_that_skips_text_is_refused() -> None:
    with pytest.raises(DetectorError, match="stride_chars 801"):
        GzipDetector(stride_chars=801)

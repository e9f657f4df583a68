from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.detectors import EntropyDetector, Source, TokenEvent
from kvrescue.errors import ConfigError, DetectorError, NonFiniteLogitsError
from tests.detectors.matrix import read

QWEN = Source(vocab_size=151_936, max_step_tokens=512)


def stream(*entropies: float) -> list[TokenEvent]:
    return [TokenEvent(0, "x", entropy) for entropy in entropies]


def test_the_papers_options_are_the_defaults() -> None:
    detector = EntropyDetector()
    assert (detector.threshold, detector.guard, detector.window) == (7.0, 24, 12)
    assert detector.first_position == 25
    detector.check(QWEN)


def test_the_first_verdict_comes_right_after_the_guard() -> None:
    verdict = read(EntropyDetector(), stream(*[9.0] * 40))
    assert verdict is not None
    assert (verdict.position, verdict.value, verdict.threshold) == (25, 9.0, 7.0)
    assert "9.000" in verdict.reason


def test_guarded_positions_count_in_the_first_window() -> None:
    # Positions 14 to 24 are guarded and high, position 25 is low: the mean is still above 7.
    verdict = read(EntropyDetector(), stream(*[0.0] * 13, *[9.0] * 11, 0.0))
    assert verdict is not None
    assert verdict.value == pytest.approx(99 / 12)


def test_a_window_above_the_guard_is_waited_for() -> None:
    verdict = read(EntropyDetector(guard=2, window=6), stream(*[9.0] * 9))
    assert verdict is not None
    assert verdict.position == 6


def test_an_excursion_inside_the_guard_is_forgiven() -> None:
    assert read(EntropyDetector(), stream(*[11.0] * 16, *[1.0] * 50)) is None


def test_a_mean_at_the_threshold_does_not_fire() -> None:
    assert read(EntropyDetector(), stream(*[7.0] * 60)) is None


@given(st.lists(st.floats(0, 11.9), max_size=80))
def test_no_window_above_the_threshold_means_no_verdict(entropies: list[float]) -> None:
    detector = EntropyDetector(threshold=5, guard=4, window=3)
    verdict = read(detector, stream(*entropies))
    means = [
        math.fsum(entropies[end - 3 : end]) / 3 for end in range(5, len(entropies) + 1)
    ]  # ends after the guard
    assert (verdict is not None) == any(mean > 5 for mean in means)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -3.0, 1e308])
@pytest.mark.parametrize("place", [1, 24, 30], ids=["first token", "in the guard", "later"])
def test_an_impossible_entropy_is_an_error_at_its_token(bad: float, place: int) -> None:
    entropies = [1.0] * 60
    entropies[place - 1] = bad
    with pytest.raises(NonFiniteLogitsError, match=f"token {place} "):
        read(EntropyDetector(), stream(*entropies))


def test_rounding_below_zero_is_no_error() -> None:
    assert read(EntropyDetector(), stream(*[-1e-6] * 40)) is None


@pytest.mark.parametrize(
    ("source", "number"),
    [
        (Source(151_936, 512, "top", 20), "3.00"),
        (Source(151_936, 512, "processed", 20), "3.00"),
        (Source(1_000, 512), "6.91"),
        (Source(1_000, 512, "processed"), "6.91"),
        (Source(500, 512, "top", 20_000), "6.21"),
        (Source(151_936, 512, "top", 1), "0.00"),
    ],
)
def test_a_threshold_above_the_sources_ceiling_is_refused(source: Source, number: str) -> None:
    with pytest.raises(DetectorError, match=number):
        EntropyDetector().check(source)


def test_the_ceiling_itself_is_out_of_reach() -> None:
    ceiling = math.log(151_936)
    assert round(ceiling, 2) == 11.93
    EntropyDetector(threshold=11.93).check(QWEN)
    with pytest.raises(DetectorError, match=r"11\.93"):
        EntropyDetector(threshold=ceiling).check(QWEN)
    EntropyDetector(threshold=2.9).check(Source(151_936, 512, "top", 20))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Source(151_936, 512, "none"), "delivers no entropy"),
        (Source(151_936, 512, "top"), "support"),
        (Source(151_936, 512, "cooked"), "valid: none, processed, raw, top"),
    ],
)
def test_a_source_without_usable_entropy_is_refused(source: Source, words: str) -> None:
    with pytest.raises(DetectorError, match=words):
        EntropyDetector(threshold=0.5).check(source)


@pytest.mark.parametrize(("guard", "window"), [(512, 1), (600, 12), (0, 513)])
def test_a_first_position_beyond_the_step_is_refused(guard: int, window: int) -> None:
    with pytest.raises(DetectorError, match="512"):
        EntropyDetector(guard=guard, window=window).check(QWEN)


def test_the_last_token_of_a_step_is_soon_enough() -> None:
    EntropyDetector(guard=511, window=512).check(QWEN)


def test_refusals_are_configuration_errors() -> None:
    assert issubclass(DetectorError, ConfigError)


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0},
        {"threshold": -1},
        {"threshold": math.nan},
        {"threshold": math.inf},
        {"guard": -1},
        {"window": 0},
        {"window": 2.5},
        {"treshold": 7.0},
    ],
)
def test_nonsense_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        EntropyDetector(**options)

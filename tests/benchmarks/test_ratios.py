"""Laws of the ratios: what they are must not depend on units, on order, or on who counts."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ratios import Goal, Ratio, Side, Size, in_turns, rate, seconds
from kvrescue.errors import ConfigError

POSITIVE = st.floats(1e-9, 1e9)
TURNS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=9)


def ratio(turns: list[tuple[float, float]], goal: Goal | None = None) -> Ratio:
    above, below = zip(*turns, strict=True)
    return Ratio("r", Side("a", above), Side("b", below), "s", "cpu", "m", "n", goal)


def inverse(of: Ratio) -> Ratio:
    return dataclasses.replace(of, above=of.below, below=of.above)


@given(TURNS)
def test_the_median_lies_within_the_spread(turns: list[tuple[float, float]]) -> None:
    found = ratio(turns)
    low, high = found.spread
    assert low <= found.value <= high
    assert low in found.by_turn
    assert high in found.by_turn


@given(TURNS, POSITIVE)
def test_the_unit_does_not_count(turns: list[tuple[float, float]], unit: float) -> None:
    scaled = ratio([(a * unit, b * unit) for a, b in turns])
    assert math.isclose(scaled.value, ratio(turns).value, rel_tol=1e-12)


@given(TURNS, POSITIVE)
def test_a_side_that_takes_longer_changes_the_ratio_by_that(
    turns: list[tuple[float, float]], factor: float
) -> None:
    slower = ratio([(a * factor, b) for a, b in turns])
    assert math.isclose(slower.value, factor * ratio(turns).value, rel_tol=1e-9)


@given(TURNS, st.lists(POSITIVE, min_size=9, max_size=9))
def test_what_slows_a_whole_turn_down_does_not_count(
    turns: list[tuple[float, float]], slower: list[float]
) -> None:
    disturbed = [(a * s, b * s) for (a, b), s in zip(turns, slower, strict=False)]
    assert math.isclose(ratio(disturbed).value, ratio(turns).value, rel_tol=1e-9)


@given(TURNS, st.randoms(use_true_random=False))
def test_the_order_of_the_turns_does_not_count(turns: list[tuple[float, float]], r: object) -> None:
    shuffled = list(turns)
    r.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ratio(shuffled).value == ratio(turns).value
    assert ratio(shuffled).spread == ratio(turns).spread


@given(TURNS)
def test_the_other_way_round_it_is_the_inverse(turns: list[tuple[float, float]]) -> None:
    found, other = ratio(turns), inverse(ratio(turns))
    assert math.isclose(other.spread[0], 1 / found.spread[1], rel_tol=1e-12)
    if len(turns) % 2:  # the mean of two in the middle has no such law
        assert math.isclose(other.value, 1 / found.value, rel_tol=1e-12)


@given(TURNS)
def test_a_side_over_itself_is_one(turns: list[tuple[float, float]]) -> None:
    found = ratio([(a, a) for a, _ in turns], Goal("exactly", 1))
    assert found.value == 1
    assert found.reached


@given(TURNS, POSITIVE)
def test_at_least_or_at_most_and_both_only_at_the_goal(
    turns: list[tuple[float, float]], wanted: float
) -> None:
    least = ratio(turns, Goal("at least", wanted))
    most = ratio(turns, Goal("at most", wanted))
    assert least.reached or most.reached
    assert (least.reached and most.reached) == (least.value == wanted)
    exact = ratio(turns, Goal("exactly", wanted)).reached
    assert exact == all(r == wanted for r in least.by_turn)
    assert ratio(turns).reached is None


GOALS = st.none() | st.builds(
    Goal, st.sampled_from(["at least", "at most", "exactly"]), st.floats(0, 1e9)
)


@given(TURNS, GOALS)
def test_json_brings_everything_back(turns: list[tuple[float, float]], goal: Goal | None) -> None:
    found = ratio(turns, goal)
    text = json.dumps(found.as_dict(), allow_nan=False)
    assert Ratio.from_dict(json.loads(text)) == found


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ((), ()),
        ((1.0,), (1.0, 2.0)),
        ((1.0,), (0.0,)),
        ((-1.0,), (1.0,)),
        ((math.nan,), (1.0,)),
        ((1.0,), (math.inf,)),
    ],
)
def test_what_has_no_ratio_is_refused(above: tuple[float, ...], below: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="r: "):
        Ratio("r", Side("a", above), Side("b", below), "s", "cpu", "m", "n")


@given(st.lists(st.text(), min_size=1, max_size=4, unique=True), st.integers(1, 5))
def test_every_side_has_every_turn_and_none_is_always_first(names: list[str], turns: int) -> None:
    called: list[str] = []

    def side(name: str) -> float:
        called.append(name)
        return float(len(called))

    found = in_turns({n: lambda n=n: side(n) for n in names}, turns)
    assert list(found) == names
    assert all(len(numbers) == turns for numbers in found.values())
    size = len(names)
    rounds = [called[i : i + size] for i in range(0, len(called), size)]
    assert rounds[0] == names  # to warm up
    for number, order in enumerate(rounds[1:]):
        assert order == (names[::-1] if number % 2 else names)
    # The numbers that come back are those of the counted rounds.
    counted = sorted(n for numbers in found.values() for n in numbers)
    assert counted == [float(i) for i in range(size + 1, size * (turns + 1) + 1)]


def test_time_is_that_of_the_work() -> None:
    done: list[int] = []

    def work() -> float:
        done.append(sum(range(200_000)))
        return 3.0

    assert seconds(work, "wall") > 0
    assert rate(work, "cpu") > 0
    assert len(done) == 2


def test_each_size_picks_its_own() -> None:
    assert [size.pick(1, 2, 3) for size in Size] == [1, 2, 3]

"""Differences: how far two trajectories agree, and why they part."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.evaluation.trajectories.diff import diverge
from kvrescue.evaluation.trajectories.trace import Trajectory, trajectories
from kvrescue.types import Question, SolutionStop
from tests.evaluation.trajectories.made import Drawn, entropy, told

SHARED = [[Drawn("base", f"step {i}\n\n", 0.9), Drawn("base", "other\n\n", 0.1)] for i in range(3)]

few = st.sampled_from(["a\n\n", "b\n\n", "c\n\n"])
pools = st.lists(
    st.one_of(
        st.builds(Drawn, st.sampled_from(["base", "helper"]), few, st.sampled_from([0.1, 0.5])),
        st.builds(Drawn, st.just("base"), few, st.none(), st.just(entropy(3.0, 1))),
    ),
    min_size=1,
    max_size=3,
)
rounds = st.lists(pools, max_size=4)


def made(
    rounds: Sequence[Sequence[Drawn]],
    proposers: tuple[str, ...] = ("base", "helper"),
    stop: SolutionStop = SolutionStop.EOS,
) -> Trajectory:
    return trajectories(told(Question("q"), rounds, proposers=proposers, stop=stop))[0]


@given(rounds, rounds)
def test_the_steps_before_are_the_same_and_the_next_is_not(
    one: list[list[Drawn]], other: list[list[Drawn]]
) -> None:
    left, right = made(one), made(other)
    found = diverge(left, right)
    mine, theirs = ([step.text for step in side.steps] for side in (left, right))
    assert mine[: found.common] == theirs[: found.common]
    next_ = (mine[found.common : found.common + 1], theirs[found.common : found.common + 1])
    if found.cause in ("none", "end"):
        assert [] in next_
        assert (found.cause == "none") == (mine == theirs)
    else:
        assert [] not in next_
        assert next_[0] != next_[1]


@given(rounds, rounds)
def test_either_side_may_come_first(one: list[list[Drawn]], other: list[list[Drawn]]) -> None:
    left, right = made(one), made(other)
    found, turned = diverge(left, right), diverge(right, left)
    assert (found.common, found.cause) == (turned.common, turned.cause)
    assert dict(found.draws) == dict(turned.draws)
    assert (found.left_in_right, found.right_in_left) == (
        turned.right_in_left,
        turned.left_in_right,
    )


@given(rounds)
def test_a_trajectory_does_not_differ_from_itself(pools: list[list[Drawn]]) -> None:
    found = diverge(made(pools), made(pools))
    assert found.cause == "none"
    assert found.common == len(made(pools).steps)


@given(rounds, rounds)
def test_places_hold_the_others_step(one: list[list[Drawn]], other: list[list[Drawn]]) -> None:
    left, right = made(one), made(other)
    found = diverge(left, right)
    if found.left_in_right is not None:
        winner, pool = left.steps[found.common], right.steps[found.common]
        candidate = pool.candidates[found.left_in_right]
        assert winner.text is not None
        assert winner.text.startswith(candidate.text)
        assert candidate.text == winner.text or candidate.verdict is not None


class TestCauses:
    def test_only_the_choice(self) -> None:
        left = made([*SHARED, [Drawn("base", "x\n\n", 0.8), Drawn("base", "y\n\n", 0.7)]])
        right = made([*SHARED, [Drawn("base", "x\n\n", 0.6), Drawn("base", "y\n\n", 0.7)]])
        found = diverge(left, right)
        assert found.only_choice
        assert (found.common, dict(found.draws)) == (3, {"base": "same", "helper": "same"})
        assert (found.left_in_right, found.right_in_left) == (0, 1)

    def test_other_draws(self) -> None:
        left = made([*SHARED, [Drawn("base", "x\n\n", 0.8)]])
        right = made([*SHARED, [Drawn("base", "z\n\n", 0.8)]])
        found = diverge(left, right)
        assert (found.common, found.cause, found.draws["base"]) == (3, "draws", "different")
        assert found.left_in_right is found.right_in_left is None

    def test_a_proposer_of_its_own(self) -> None:
        pool = [Drawn("base", "x\n\n", 0.3)]
        left = made([*SHARED, pool], ("base",))
        right = made([*SHARED, [*pool, Drawn("helper", "y\n\n", 0.9)]])
        found = diverge(left, right)
        assert (found.common, found.cause, dict(found.draws)) == (3, "proposers", {"base": "same"})
        assert (found.left_in_right, found.right_in_left) == (0, None)

    def test_an_abort(self) -> None:
        left = made([*SHARED, [Drawn("base", "looping\n\n", 0.8), Drawn("base", "y\n\n", 0.7)]])
        cut = Drawn("base", "loop", verdict=entropy(3.1, 4))
        right = made([*SHARED, [cut, Drawn("base", "y\n\n", 0.7)]])
        found = diverge(left, right)
        assert (found.common, found.cause, found.draws["base"]) == (3, "screened", "cut")
        assert (found.left_in_right, found.right_in_left) == (0, 1)

    @pytest.mark.parametrize("longer", [1, 2])
    def test_one_ends_first(self, longer: int) -> None:
        found = diverge(made(SHARED), made([*SHARED, *SHARED[:longer]]))
        assert (found.common, found.cause) == (3, "end")

    def test_the_same_steps_with_another_end(self) -> None:
        found = diverge(made(SHARED), made(SHARED, stop=SolutionStop.STEPS))
        assert (found.common, found.cause) == (3, "end")

    def test_a_trace_that_breaks_off(self) -> None:
        events = told(Question("q"), SHARED)
        cut = trajectories(events[: events.index(next(e for e in events if hasattr(e, "step")))])
        assert diverge(cut[0], made(SHARED)).cause == "unfinished"

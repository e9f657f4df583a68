"""examples/loop_detector.py: the laws, a plain reference, and a model that loops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.loop_detector import StepLoop, normalised
from kvrescue import TokenEvent, Verdict
from kvrescue.detectors import in_context
from kvrescue.policies.torch import TorchPolicy
from kvrescue.testing import check_detector
from kvrescue.types import StopReason
from tests.engine.firing import continuing
from tests.policies.parts import questions, step

COMMITTED = ("So 3 + 4 = 7.\n\n", "Check.\n\n", "So 3 + 4 = 7.\n\n")


def read(detector: StepLoop, committed: Sequence[str], *tokens: str) -> Verdict | None:
    state = detector.start_in(continuing(*committed))
    for text in tokens:
        verdict = state.update(TokenEvent(1, text, 0.0))
        if verdict is not None:
            return verdict
    return None


@pytest.mark.parametrize("detector", [StepLoop(), StepLoop(times=2, max_period=1)])
def test_laws(detector: StepLoop) -> None:
    text = "check.\n\n" if detector.max_period > 1 else " so  3 + 4 = 7.\n\n"
    check_detector(detector, fires_on=text, context=COMMITTED)


STEPS = st.lists(st.sampled_from(["a\n\n", "b\n\n", "1\n\n", "2\n\n"]), max_size=24)


@given(STEPS, st.integers(2, 4), st.integers(1, 6))
def test_fires_exactly_where_a_cycle_is_complete(steps: list[str], times: int, most: int) -> None:
    *committed, candidate = ["a\n\n", *steps]
    everything = [*committed, candidate]
    loop = any(
        len(everything) >= period * times
        and everything[-period * times :] == everything[-period:] * times
        for period in range(1, most + 1)
    )
    verdict = read(StepLoop(times=times, max_period=most), committed, *candidate)
    assert (verdict is not None) == loop
    if verdict is not None:
        assert verdict.position == verdict.char_position == len(candidate)
        assert verdict.value >= verdict.threshold == times


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("So  3 + 4 = 7.\n\n", " so 3 + 4 = 7.\n\n", True),
        ("Step 3: add 4.\n\n", "Step 4: add 4.\n\n", False),
        ("3 + 4\n\n", "3 - 4\n\n", False),
        ("x\n\n", "X\n\n", True),
    ],
)
def test_what_counts_as_the_same_step(first: str, second: str, same: bool) -> None:
    assert (normalised(first) == normalised(second)) == same
    assert (read(StepLoop(), [first], second) is not None) == same


def test_a_step_that_is_not_finished_is_not_judged() -> None:
    assert read(StepLoop(), ["a b\n\n"], "a", " b", "\n") is None
    assert read(StepLoop(), ["a b\n\n"], "a", " b", " c", "\n\n") is None
    assert read(StepLoop(), ["\n\n", "\n\n"], "\n\n") is None  # blank steps are no steps


@pytest.mark.parametrize("again", [False, True])
def test_a_model_is_stopped_where_it_says_a_step_again(again: bool) -> None:
    """The same greedy step, before and after it stands among the committed ones."""

    async def run() -> None:
        policy = TorchPolicy("tiny/base")
        view = await policy.open(questions(1)[0], "base")
        greedy = step(60, temperature=0.0, separator="\n\n")
        [free] = await view.propose(1, greedy, (), [1], 512)
        assert free.stop is StopReason.SEPARATOR
        texts = [free.text] if again else ["other\n\n"]
        detector = in_context(StepLoop(), continuing(*texts))
        [seen] = await view.propose(1, greedy, (detector,), [1], 512)
        if not again:
            assert seen == free
        else:
            assert seen.stop is StopReason.ABORTED
            assert seen.verdict is not None
            assert seen.verdict.position == free.n_tokens
            assert seen.verdict.char_position == len(free.text)
        await view.close()
        await policy.aclose()

    asyncio.run(run())

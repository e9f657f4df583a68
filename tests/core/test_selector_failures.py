"""Whatever fails, and whenever: a typed error or a recorded degradation, and nothing left open."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.detectors.base import Detector, Source
from kvrescue.errors import (
    AuditError,
    CapacityError,
    ConfigError,
    DetectorError,
    InputError,
    KVRescueError,
    NonFiniteLogitsError,
    PluginError,
    PolicyError,
    ScorerError,
)
from kvrescue.events import CandidateFinished, Event, StepCommitted
from kvrescue.policies.base import Sampling
from kvrescue.rules import Limits
from kvrescue.selector import Proposer, StepwiseSelector
from kvrescue.tasks import gather, uninterrupted
from kvrescue.types import Candidate, Degradation, Question, SolutionStop, StopReason, Verdict
from tests.core.fakes import FakeDetector, FakePolicy, FakeScorer, FakeView, Habits, Trouble

QUESTION = Question("How many?", "q1")
STEADY = Habits(words=("a\n\n", "b\n\n", "c d\n\n"), eos=0.0)
LIMITS = Limits(max_steps=4)


class BoomError(Exception):
    """Something a plugin's author did not think of."""


def fail_at(where: str, error: BaseException, *, after: int = 0) -> Trouble:
    """Raise `error` at the `after`-th visit of `where` (0 = the first) and ever after."""
    visits = 0

    def trouble(at: str) -> None:
        nonlocal visits
        if at == where:
            visits += 1
            if visits > after:
                raise error

    return trouble


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []


def pair(
    trouble: Trouble | None = None, *, delay: float = 0.0
) -> tuple[list[Proposer], FakePolicy, FakePolicy]:
    """A base that never fails and a helper that may."""
    base = FakePolicy(STEADY, delay=delay)
    helper = FakePolicy(STEADY, trouble=trouble, delay=delay)
    return [Proposer(base, 2), Proposer(helper, 2, name="helper")], base, helper


# -- policies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "after"),
    [("open", 0), ("propose", 0), ("propose", 1), ("commit", 0), ("commit", 1), ("close", 0)],
)
async def test_a_failing_policy_raises_a_typed_error(where: str, after: int) -> None:
    proposers, base, helper = pair(fail_at(where, BoomError("it broke"), after=after))
    with pytest.raises(PolicyError, match=r"'helper'.*BoomError: it broke") as caught:
        await StepwiseSelector(proposers, FakeScorer(), limits=LIMITS).run(QUESTION)
    assert isinstance(caught.value.__cause__, BoomError)
    assert base.log.balanced
    assert helper.log.balanced


async def test_own_errors_keep_their_class() -> None:
    proposers, base, _ = pair(fail_at("propose", NonFiniteLogitsError("layer 3")))
    with pytest.raises(NonFiniteLogitsError, match="layer 3"):
        await StepwiseSelector(proposers, FakeScorer()).run(QUESTION)
    assert base.log.balanced


@pytest.mark.parametrize("where", ["open", "propose", "commit"])
async def test_degrading_goes_on_without_the_failed_policy(where: str) -> None:
    proposers, base, helper = pair(
        fail_at(where, BoomError("it broke"), after=int(where == "commit"))
    )
    solution = await StepwiseSelector(
        proposers, FakeScorer(), limits=LIMITS, on_policy_error="degrade"
    ).run(QUESTION)
    assert solution.stop is SolutionStop.STEPS
    assert {fault.where for fault in solution.degradations} == {"helper"}
    assert all("it broke" in fault.message for fault in solution.degradations)
    assert base.log.balanced
    assert helper.log.balanced
    if where == "propose":  # sits out each round, and each time it is told
        assert len(solution.degradations) == len(solution.steps)
        assert [len(step.degradations) for step in solution.steps] == [1] * len(solution.steps)
    else:
        assert len(solution.degradations) == 1
    if where == "commit":
        assert [len(step.candidates) for step in solution.steps] == [4, 4, 2, 2]


async def test_a_policy_that_recovers_proposes_again() -> None:
    visits = 0

    def once(where: str) -> None:
        nonlocal visits
        visits += where == "propose"
        if where == "propose" and visits == 2:
            raise BoomError("for a moment")

    proposers, _, helper = pair(once)
    solution = await StepwiseSelector(
        proposers, FakeScorer(), limits=LIMITS, on_policy_error="degrade"
    ).run(QUESTION)
    assert [len(step.candidates) for step in solution.steps] == [4, 2, 4, 4]
    # Its view took part in every commit, so its context never fell behind.
    assert helper.log.commits == [step.text for step in solution.steps[:-1]]


async def test_degrading_with_nobody_left_raises() -> None:
    policy = FakePolicy(STEADY, trouble=fail_at("propose", BoomError("it broke"), after=1))
    selector = StepwiseSelector([Proposer(policy)], FakeScorer(), on_policy_error="degrade")
    with pytest.raises(PolicyError, match="it broke"):
        await selector.run(QUESTION)
    assert policy.log.balanced


@pytest.mark.parametrize("degrade", ["raise", "degrade"])
async def test_an_audit_is_never_masked(degrade: str) -> None:
    proposers, base, helper = pair(fail_at("close", AuditError("never fired")))
    with pytest.raises(AuditError, match="never fired"):
        await StepwiseSelector(
            proposers,
            FakeScorer(trouble=fail_at("release", BoomError("too"))),
            limits=LIMITS,
            on_policy_error=degrade,  # type: ignore[arg-type]
            on_scorer_error="degrade",
        ).run(QUESTION)
    assert base.log.balanced
    assert helper.log.balanced


async def test_an_audit_outvotes_another_view_that_cannot_be_closed() -> None:
    base = FakePolicy(STEADY, trouble=fail_at("close", BoomError("it broke")))
    helper = FakePolicy(STEADY, trouble=fail_at("close", AuditError("never fired")))
    with pytest.raises(AuditError, match="never fired"):
        await StepwiseSelector(
            [Proposer(base), Proposer(helper, name="helper")], FakeScorer(), limits=LIMITS
        ).run(QUESTION)
    assert base.log.balanced
    assert helper.log.balanced


async def test_what_a_user_has_to_mend_is_raised_even_when_degrading() -> None:
    proposers, base, _ = pair(fail_at("open", InputError("too long")))
    with pytest.raises(InputError, match="too long"):
        await StepwiseSelector(proposers, FakeScorer(), on_policy_error="degrade").run(QUESTION)
    assert base.log.balanced


async def test_ties_go_to_the_earlier_proposer_however_long_it_takes_to_open() -> None:
    same = Habits(words=("a\n\n",), eos=0.0)
    slow, fast = FakePolicy(same, delay=0.005), FakePolicy(same)
    solution = await StepwiseSelector(
        [Proposer(slow), Proposer(fast, name="helper")], FakeScorer(), limits=LIMITS
    ).run(QUESTION)
    assert {step.candidate.policy for step in solution.steps} == {"base"}
    assert [candidate.policy for candidate in solution.steps[0].candidates] == ["base", "helper"]


async def test_an_audit_that_fails_after_another_error_is_noted_on_it() -> None:
    base = FakePolicy(STEADY, trouble=fail_at("close", AuditError("never fired")))
    helper = FakePolicy(STEADY, trouble=fail_at("propose", BoomError("it broke")))
    with pytest.raises(PolicyError, match="it broke") as caught:
        await StepwiseSelector([Proposer(base), Proposer(helper, name="helper")], FakeScorer()).run(
            QUESTION
        )
    assert "never fired" in " ".join(caught.value.__notes__)


async def test_leaving_early_closes_every_view_and_still_audits() -> None:
    proposers, base, helper = pair(fail_at("close", AuditError("never fired")))

    async def read_one_step() -> None:
        async with aclosing(StepwiseSelector(proposers, FakeScorer()).events(QUESTION)) as events:
            async for event in events:
                if isinstance(event, StepCommitted):
                    break

    with pytest.raises(AuditError, match="never fired"):
        await read_one_step()
    assert base.log.balanced
    assert helper.log.balanced


async def test_a_policy_that_cancels_itself_is_a_failure_not_a_cancellation() -> None:
    proposers, base, _ = pair(fail_at("propose", asyncio.CancelledError()))
    with pytest.raises(PolicyError, match="CancelledError"):
        await StepwiseSelector(proposers, FakeScorer()).run(QUESTION)
    assert base.log.balanced


async def test_a_prompt_without_room_is_an_input_error_even_when_degrading() -> None:
    policy = FakePolicy(STEADY, prompt=30, context=30)
    for limits in (Limits(), Limits(max_context=20)):
        with pytest.raises(InputError, match="'q1' takes 30 tokens"):
            await StepwiseSelector(
                [Proposer(policy), Proposer(FakePolicy(), name="helper")],
                FakeScorer(),
                limits=limits,
                on_policy_error="degrade",
            ).run(QUESTION)
    assert policy.log.balanced


class Foreign(FakePolicy):
    """Its tokenizer needs more tokens than there is room for."""

    async def open(self, question: Question, name: str) -> FakeView:
        view = await super().open(question, name)
        commit = view.commit

        async def refuse_foreign(candidate: Candidate) -> None:
            if candidate.policy != name:
                raise CapacityError("no room")
            await commit(candidate)

        view.commit = refuse_foreign  # type: ignore[method-assign]
        return view


async def test_a_foreign_step_that_does_not_fit_ends_the_trajectory() -> None:
    policy = Foreign(STEADY)
    solution = await StepwiseSelector(
        [Proposer(FakePolicy(STEADY), 4), Proposer(policy, name="helper")], FakeScorer()
    ).run(QUESTION)
    assert solution.stop is SolutionStop.CONTEXT
    assert solution.steps[-1].candidate.policy == "base"
    assert policy.log.balanced


Change = Callable[[list[Candidate]], list[Candidate]]
FLAG = Verdict("fake", "flagged", 1, 2.0, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found[:1], r"0 to 1, its policy returned \[0\]"),
        (lambda found: [*found, found[0]], r"returned \[0, 1, 0\]"),
        (lambda found: [found[0], found[0]], r"returned \[0, 0\]"),
        (lambda found: [replace(c, policy="other") for c in found], "labelled 'other'"),
        (
            lambda found: [replace(c, verdict=FLAG, stop=StopReason.ABORTED) for c in found],
            "no detector screens",
        ),
        (lambda found: [replace(c, stop=StopReason.ABORTED) for c in found], "has a verdict"),
        (lambda found: [replace(c, verdict=FLAG) for c in found], "no other has"),
        (lambda found: [replace(c, token_ids=(1,) * 600) for c in found], "has 600 tokens"),
    ],
)
async def test_a_policy_that_breaks_its_contract_is_named(change: Change, message: str) -> None:
    class Broken(FakePolicy):
        async def open(self, question: Question, name: str) -> FakeView:
            view = await super().open(question, name)
            propose = view.propose

            async def broken(
                n: int,
                sampling: Sampling,
                detectors: Sequence[Detector],
                seeds: Sequence[int],
                max_tokens: int,
            ) -> list[Candidate]:
                return change(await propose(n, sampling, detectors, seeds, max_tokens))

            view.propose = broken  # type: ignore[method-assign]
            return view

    policy = Broken(STEADY)
    with pytest.raises(PolicyError, match=message):
        await StepwiseSelector([Proposer(policy, 2)], FakeScorer()).run(QUESTION)
    assert policy.log.balanced


async def test_all_flagged_is_what_the_configuration_says() -> None:
    runs = {}
    for choice in ("stop", "redraw"):
        policy = FakePolicy(Habits(words=("a\n\n",), flagged=1.0, eos=0.0))
        proposer = Proposer(policy, 2, (FakeDetector(),))
        solution = await StepwiseSelector(
            [proposer],
            FakeScorer(),
            when_all_flagged=choice,  # type: ignore[arg-type]
        ).run(QUESTION)
        assert solution.stop is SolutionStop.FLAGGED
        assert solution.steps == ()
        runs[choice] = solution
    assert runs["stop"].empty_rounds == 1
    assert runs["redraw"].empty_rounds == Limits().max_empty_steps
    assert runs["redraw"].tokens["base"].aborted == 6


async def test_a_helper_that_fails_for_a_moment_does_not_end_a_flagged_round() -> None:
    visits = 0

    def once(where: str) -> None:
        nonlocal visits
        visits += where == "propose"
        if where == "propose" and visits == 1:
            raise BoomError("for a moment")

    base = FakePolicy(Habits(words=("a\n\n",), flagged=1.0, eos=0.0))
    helper = FakePolicy(STEADY, trouble=once)
    solution = await StepwiseSelector(
        [Proposer(base, 2, (FakeDetector(),)), Proposer(helper, name="helper")],
        FakeScorer(),
        limits=LIMITS,
        on_policy_error="degrade",
    ).run(QUESTION)
    assert solution.stop is SolutionStop.STEPS
    assert solution.empty_rounds == 1
    assert {step.candidate.policy for step in solution.steps} == {"helper"}


async def test_a_view_that_cannot_be_measured_is_a_policy_error() -> None:
    class Odd(FakePolicy):
        async def open(self, question: Question, name: str) -> FakeView:
            view = await super().open(question, name)
            view.length = None  # type: ignore[assignment]
            return view

    policy = Odd(STEADY)
    with pytest.raises(PolicyError, match="'base' failed while measuring: TypeError"):
        await StepwiseSelector([Proposer(policy)], FakeScorer()).run(QUESTION)
    assert policy.log.balanced


def test_a_detector_is_checked_against_its_source_when_the_selector_is_built() -> None:
    class Deaf(FakeDetector):
        def check(self, source: Source) -> None:
            raise DetectorError(f"cannot fire within {source.max_step_tokens} tokens")

    with pytest.raises(DetectorError, match="within 24 tokens"):
        StepwiseSelector(
            [Proposer(FakePolicy(), 1, (Deaf(),))], FakeScorer(), Sampling(max_step_tokens=24)
        )


# -- scorers ----------------------------------------------------------------------------------


BAD = [math.nan, math.inf, -math.inf, -0.01, 1.01, None, "high"]


@pytest.mark.parametrize("bad", BAD)
async def test_a_score_that_is_none_raises(bad: object) -> None:
    proposers, base, helper = pair()
    scorer = FakeScorer(lambda scores: [bad, *scores[1:]])
    with pytest.raises(ScorerError, match="score of candidate 0 of 'base'"):
        await StepwiseSelector(proposers, scorer).run(QUESTION)
    assert base.log.balanced
    assert helper.log.balanced
    assert len(scorer.released) == 1


@given(st.data())
async def test_degrading_ignores_bad_scores_and_tells(data: st.DataObject) -> None:
    def spoil(scores: list[float]) -> list[object]:
        return [data.draw(st.sampled_from([score, score, *BAD])) for score in scores]

    proposers, _, _ = pair()
    solution = await StepwiseSelector(
        proposers, FakeScorer(spoil), limits=LIMITS, on_scorer_error="degrade"
    ).run(QUESTION)
    assert solution.stop is SolutionStop.STEPS
    for step in solution.steps:
        valid = [score for score in step.scores if score is not None]
        assert all(0.0 <= score <= 1.0 for score in valid)
        if valid:
            assert step.score == max(valid)
        else:
            assert step.score is None
            assert step.candidate is step.candidates[0]
        assert bool(step.degradations) == (None in step.scores)
    assert solution.degradations == tuple(
        fault for step in solution.steps for fault in step.degradations
    )


@pytest.mark.parametrize("count", [0, 1, 9])
async def test_a_wrong_number_of_scores(count: int) -> None:
    proposers, _, _ = pair()
    scorer = FakeScorer(lambda scores: [0.5] * count)
    with pytest.raises(ScorerError, match=f"returned {count} scores for"):
        await StepwiseSelector(proposers, scorer).run(QUESTION)
    proposers, _, _ = pair()
    solution = await StepwiseSelector(
        proposers, scorer, limits=Limits(max_steps=1), on_scorer_error="degrade"
    ).run(QUESTION)
    assert solution.steps[0].score is None
    assert solution.steps[0].candidate is solution.steps[0].candidates[0]
    assert "returned" in solution.degradations[0].message


async def test_a_failing_scorer() -> None:
    proposers, base, helper = pair()
    scorer = FakeScorer(trouble=fail_at("score", BoomError("it broke")))
    with pytest.raises(ScorerError, match="BoomError: it broke") as caught:
        await StepwiseSelector(proposers, scorer).run(QUESTION)
    assert isinstance(caught.value.__cause__, BoomError)
    assert base.log.balanced
    assert helper.log.balanced
    solution = await StepwiseSelector(
        proposers, scorer, limits=LIMITS, on_scorer_error="degrade"
    ).run(QUESTION)
    assert len(solution.degradations) == len(solution.steps) == 4


async def test_a_scorer_that_cannot_release() -> None:
    proposers, base, _ = pair()
    scorer = FakeScorer(trouble=fail_at("release", BoomError("it broke")))
    with pytest.raises(ScorerError, match="it broke"):
        await StepwiseSelector(proposers, scorer, limits=LIMITS).run(QUESTION)
    assert base.log.balanced
    solution = await StepwiseSelector(
        proposers, scorer, limits=LIMITS, on_scorer_error="degrade"
    ).run(QUESTION)
    assert solution.degradations == (
        Degradation("scorer", "the scorer FakeScorer failed: BoomError: it broke"),
    )


# -- observers and cancellation ---------------------------------------------------------------


async def _waits(event: object) -> None: ...


class _Waits:
    async def __call__(self, event: object) -> None: ...


@pytest.mark.parametrize("observer", [_waits, functools.partial(_waits), _Waits()])
@pytest.mark.parametrize("name", ["observers", "eviction_observers"])
def test_async_observers_are_refused(name: str, observer: Any) -> None:
    proposers = [Proposer(FakePolicy())]
    with pytest.raises(ConfigError, match=rf"{name}\[1\] = .* is async"):
        StepwiseSelector(proposers, FakeScorer(), **{name: [print, observer]})


async def test_an_observer_that_fails_ends_the_run_with_its_name() -> None:
    def watch(event: Event) -> None:
        if isinstance(event, CandidateFinished):
            raise BoomError("it broke")

    proposers, base, helper = pair()
    with pytest.raises(PluginError, match=r"watch.*CandidateFinished: BoomError: it broke"):
        await StepwiseSelector(proposers, FakeScorer(), observers=[watch]).run(QUESTION)
    assert base.log.balanced
    assert helper.log.balanced


@given(st.integers(0, 80), st.integers(0, 3))
async def test_cancelling_at_any_moment_closes_every_view_once(turns: int, again: int) -> None:
    proposers, base, helper = pair(delay=0)
    scorer = FakeScorer()
    run = asyncio.create_task(StepwiseSelector(proposers, scorer, limits=LIMITS).run(QUESTION))
    for _ in range(turns):
        await asyncio.sleep(0)
    finished = run.done()
    for _ in range(again + 1):
        run.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([run])
    assert run.cancelled() is not finished
    assert base.log.balanced
    assert helper.log.balanced
    assert len(scorer.released) <= 1


async def test_one_failure_cancels_the_siblings_and_waits_for_them() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("slow")

    async def broken() -> None:
        await asyncio.sleep(0)
        raise KVRescueError("it broke")

    with pytest.raises(KVRescueError, match="it broke"):
        await gather({"slow": slow(), "broken": broken()}, keep_going=False)
    assert ended == ["slow"]


async def test_uninterrupted_finishes_its_work_before_it_passes_the_cancellation_on() -> None:
    done: list[int] = []

    async def work() -> int:
        await asyncio.sleep(0.02)
        done.append(1)
        return 1

    task = asyncio.create_task(uninterrupted(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]
    assert await uninterrupted(work()) == 1

"""Accounts: what the events say is what was done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue import Limits, Proposer, Rescue
from kvrescue.evaluation.bill import bills
from kvrescue.evaluation.runs.account import Account, Accountant
from kvrescue.events import Event, StepCommitted, TrajectoryFinished, TrajectoryStarted
from kvrescue.selector import StepwiseSelector
from kvrescue.types import Question, Solution, SolutionStop
from tests.core.fakes import FakeDetector, FakePolicy, FakeScorer, Habits


def naive_attended(prompt: int, bound: int | None, events: list[Event], name: str) -> int:
    """Token by token, from the candidates and the views' lengths."""
    total, length = 0, prompt
    for event in events:
        if not isinstance(event, StepCommitted):
            continue
        grown = event.caches[name].logical_length - length if name in event.caches else 0
        forwards = [c.n_tokens for c in event.step.candidates if c.policy == name]
        if event.step.candidate.policy != name:
            forwards.append(grown)
        for tokens in forwards:
            for i in range(1, tokens + 1):
                total += length + i if bound is None else min(bound, length + i)
        length += grown
    return total


@given(
    seed=st.integers(0, 10**6),
    counts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    flagged=st.sampled_from([0.0, 0.5]),
)
async def test_an_account_agrees_with_the_solution(
    seed: int, counts: tuple[int, int], flagged: float
) -> None:
    habits = Habits(flagged=flagged)
    proposers = [
        Proposer(FakePolicy(habits), counts[0], [FakeDetector()], "base"),
        Proposer(FakePolicy(habits), counts[1], (), "helper"),
    ]
    selector = StepwiseSelector(proposers, FakeScorer(), limits=Limits(max_steps=6))
    accounts = Accountant()
    solution: Solution | None = None
    async for event in selector.events(Question("q"), seed):
        accounts(event)
        if isinstance(event, TrajectoryFinished):
            solution = event.solution
    account = accounts.take("q")
    assert account.events == []  # an id that was never asked
    assert solution is not None
    account = accounts.take(solution.question.id)
    assert account.solution is solution
    assert set(account.uses) == {"base", "helper"}
    length = 3  # the prompt of a fake policy
    for event in account.events:
        if isinstance(event, TrajectoryStarted):
            assert {cache.logical_length for cache in event.caches.values()} == {length}
        elif isinstance(event, StepCommitted):
            last = event.step.number == len(solution.steps) - 1
            ends = last and solution.stop in (SolutionStop.EOS, SolutionStop.STEPS)
            length += 0 if ends else event.step.candidate.n_tokens
            assert {cache.logical_length for cache in event.caches.values()} == {length}
    for use in account.uses.values():
        assert use.prompt == 3
        assert use.logical == length
    for name, use in account.uses.items():
        told = solution.tokens[name]
        assert (use.candidates, use.generated, use.aborted) == (
            told.candidates,
            told.generated,
            told.aborted,
        )
        assert (use.committed_steps, use.committed_tokens) == (
            told.committed_steps,
            told.committed_tokens,
        )
        assert use.aborted_tokens <= use.generated
    scored = [s for step in solution.steps for s in step.scores if s is not None]
    assert account.scored <= len(scored)
    assert accounts.take(solution.question.id).solution is None  # taken once


@pytest.fixture(scope="module")
def tiny() -> tuple[Account, Solution]:
    accounts = Accountant()
    question = Question(bills("test", 3, 1)[0].question)
    changes = ["proposers.base.candidates=2", "proposers.helper.candidates=2"]
    with Rescue.from_config("tiny", changes, observers=[accounts]) as rescue:
        solution = rescue.solve(question, seed=5)
    return accounts.take(question.id), solution


def test_the_work_of_a_real_trajectory(tiny: tuple[Account, Solution]) -> None:
    account, solution = tiny
    started = account.events[0]
    assert isinstance(started, TrajectoryStarted)
    base, helper = account.uses["base"], account.uses["helper"]
    assert (base.bound, helper.bound) == (28, None)
    assert base.prompt == helper.prompt == started.caches["base"].logical_length > 28
    for name, use in account.uses.items():
        assert use.logical == solution.caches[name].logical_length
        own = use.committed_tokens
        if solution.steps[-1].candidate.policy == name:
            own -= solution.steps[-1].candidate.n_tokens  # no view reads the last step
        assert use.prompt + own + use.encoded == use.logical
        assert use.attended == naive_attended(use.prompt, use.bound, account.events, name)
    assert base.attended == 28 * (base.generated + base.encoded)
    assert account.scored == sum(
        score is not None for step in solution.steps for score in step.scores
    )

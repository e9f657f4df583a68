"""Detectors that know the committed steps: who is told of which, and who is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.detectors import Detector, DetectorBank, DetectorState, Source, TokenEvent, in_context
from kvrescue.errors import DetectorError, PolicyError
from kvrescue.events import CandidateFinished, StepCommitted
from kvrescue.policies.base import Sampling
from kvrescue.rules import Limits
from kvrescue.selector import Proposer, StepwiseSelector
from kvrescue.types import Candidate, Context, Question, Verdict
from tests.core.fakes import FakePolicy, FakeScorer, FakeView, Habits
from tests.detectors.matrix import CONFIGURED
from tests.engine.firing import Repeats, continuing

QUESTION = Question("How many?", "q1")


class Reader(DetectorState):
    """Says in a verdict's reason which steps it was started with."""

    def __init__(self, steps: Sequence[str] | None) -> None:
        self.steps, self.read = steps, 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self.read += 1
        return Verdict("knows", repr(self.steps), self.read, 1.0, 1.0)


class Knows(Detector):
    """Fires at the first token."""

    kind: ClassVar[str] = "knows"
    level: int = 1

    def start(self) -> DetectorState:
        return Reader(None)

    def start_in(self, context: Context) -> DetectorState:
        if self.level == 0:
            raise ZeroDivisionError("a broken detector")
        return Reader([context.question.id, *(step.text for step in context.steps)])

    def check(self, source: Source) -> None:
        if self.level < 0:
            raise DetectorError("never")


class ScreeningPolicy(FakePolicy):
    """A policy that knows nothing of contexts; it notes which detectors it is given, and what the
    first of them would say of a candidate."""

    def __init__(self, habits: Habits) -> None:
        super().__init__(habits)
        self.given: list[Sequence[Detector]] = []
        self.said: list[str] = []

    @property
    def source(self) -> Source:
        return Source(vocab_size=1000, max_step_tokens=512)

    async def open(self, question: Question, name: str) -> FakeView:
        await super().open(question, name)
        return ScreeningView(self, name, self.log.opened - 1)


class ScreeningView(FakeView):
    policy: ScreeningPolicy

    async def propose(
        self,
        n: int,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        max_tokens: int,
    ) -> list[Candidate]:
        self.policy.given.append(tuple(detectors))
        verdict = DetectorBank(detectors).update(TokenEvent(1, "a", 0.0)) if detectors else None
        self.policy.said.append(verdict.reason if verdict else "")
        return await super().propose(n, sampling, (), seeds, max_tokens)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 2), steps=st.integers(1, 6))
def test_candidates_are_read_as_what_continues_the_committed_steps(
    seed: int, n: int, steps: int
) -> None:
    """Whoever wrote them, and also in rounds after one that committed nothing."""
    policies = [ScreeningPolicy(Habits(eos=0.05)) for _ in range(2)]
    proposers = [Proposer(policies[0], n, (Knows(),), "own"), Proposer(policies[1], n, (), "other")]
    selector = StepwiseSelector(proposers, FakeScorer(), limits=Limits(max_steps=steps))
    expected: list[str] = []
    committed: list[str] = []
    rounds: set[int] = set()

    async def run() -> None:
        async for event in selector.events(QUESTION, seed):
            if isinstance(event, CandidateFinished) and event.draw not in rounds:
                rounds.add(event.draw)
                expected.append(repr([QUESTION.id, *committed]))
            elif isinstance(event, StepCommitted):
                committed.append(event.step.text)

    asyncio.run(run())
    assert policies[0].said == expected
    assert set(policies[1].given) == {()}


@pytest.mark.parametrize("detector", CONFIGURED.values(), ids=CONFIGURED)
def test_who_does_not_ask_is_given_as_it_is(detector: Detector) -> None:
    assert in_context(detector, continuing("a\n\n")) is detector
    policy = ScreeningPolicy(Habits(eos=0.0))
    selector = StepwiseSelector(
        [Proposer(policy, 1, (detector,))], FakeScorer(), limits=Limits(max_steps=3)
    )
    asyncio.run(selector.run(QUESTION))
    assert policy.given
    assert all(given == (detector,) and given[0] is detector for given in policy.given)


def test_the_default_is_a_start_without_context() -> None:
    class Deaf(Knows):
        def start_in(self, context: Context) -> DetectorState:
            return Detector.start_in(self, context)

    verdict = DetectorBank([in_context(Deaf(), continuing("a\n\n"))]).update(
        TokenEvent(1, "a", 0.0)
    )
    assert verdict is not None
    assert verdict.reason == "None"


def test_a_bound_detector_is_called_by_its_own_name() -> None:
    context = continuing("a\n\n")
    bound = in_context(Knows(level=0), context)
    assert bound.kind == "knows"
    assert "Knows(level=0)" in repr(bound)
    with pytest.raises(PolicyError, match="detector 'knows' failed: ZeroDivisionError") as found:
        DetectorBank([bound])
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    with pytest.raises(DetectorError, match="never"):
        in_context(Knows(level=-1), context).check(Source(10, 10))


def test_contexts_do_not_mix() -> None:
    """One detector, two trajectories side by side."""
    detector = Repeats()
    one, two = (DetectorBank([in_context(detector, continuing(text))]) for text in ("ab", "ba"))
    positions = []
    for bank in (one, two):
        for position, text in enumerate("xxbab", 1):
            if bank.verdict is None and bank.update(TokenEvent(1, text, 0.0)):
                positions.append(position)
    assert positions == [5, 4]

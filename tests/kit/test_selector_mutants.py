"""Another selector, written down plainly, passes; with one flaw it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from kvrescue.errors import ConfigError, ScorerError
from kvrescue.rules import Limits, is_selectable
from kvrescue.sampling import Sampling
from kvrescue.scorers.base import Scorer
from kvrescue.scoring import fault_of_score
from kvrescue.seeding import candidate_seed
from kvrescue.selector import StepwiseSelector
from kvrescue.testing import check_selector
from kvrescue.types import (
    Candidate,
    CommittedStep,
    Context,
    Question,
    Solution,
    SolutionStop,
    StopReason,
)
from kvrescue.views import Proposer
from tests.kit.mutants import caught


class Plain:
    """Algorithm 1 without the library's selector; `flaw` names what is wrong with it."""

    def __init__(
        self, proposers: Sequence[Proposer], scorer: Scorer, limits: Limits, flaw: str = ""
    ) -> None:
        self.proposers, self.scorer, self.limits, self.flaw = proposers, scorer, limits, flaw

    async def run(self, question: Question, seed: int = 0) -> Solution:
        context = Context(question)
        views = {p.name: await p.policy.open(question, p.name) for p in self.proposers}
        try:
            stop, context = await self.steps(question, seed, context, views)
        finally:
            for view in list(views.values())[self.flaw == "leaves a view open" :]:
                await view.close()
            await self.scorer.release(context)
        if self.flaw == "loses the solution" and context.steps:
            return None  # type: ignore[return-value]
        return Solution(question, context.steps, stop, seed)

    async def steps(self, question, seed, context, views):
        limits, empty, draw, used = self.limits, 0, 0, 0
        screened = all(p.detectors for p in self.proposers)
        while True:
            left = limits.max_context - 3 - used
            if limits.max_output_tokens is not None and self.flaw != "forgets a limit":
                left = min(left, limits.max_output_tokens - used)
            if left < 1:
                return SolutionStop.CONTEXT, context
            pool = await self.pool(question, seed, draw, views, left)
            draw += 1
            may = [c for c in pool if self.selectable(c)]
            if not may:
                empty += 1
                if all(c.verdict for c in pool) and screened:
                    return SolutionStop.FLAGGED, context
                if empty >= limits.max_empty_steps + (self.flaw == "counts wrongly"):
                    return SolutionStop.EMPTY, context
                continue
            empty = 0
            winner = await self.best(context, may)
            step = CommittedStep(len(context.steps), winner, None)
            context = dataclasses.replace(context, steps=(*context.steps, step))
            used += winner.n_tokens
            if winner.stop in (StopReason.EOS, StopReason.CONTEXT):
                return SolutionStop.EOS, context
            if len(context.steps) >= limits.max_steps:
                return SolutionStop.STEPS, context
            for name, view in views.items():
                if self.flaw != "drops a step" or name == winner.policy:
                    await view.commit(winner)

    async def pool(self, question, seed, draw, views, left) -> list[Candidate]:
        pool: list[Candidate] = []
        for proposer in self.proposers:
            name = proposer.name
            round_ = 0 if self.flaw == "draws with old seeds" else draw
            seeds = [candidate_seed(seed, question.id, round_, name, i) for i in range(proposer.n)]
            detectors = proposer.detectors
            if self.flaw == "screens everybody":
                detectors = [d for p in self.proposers for d in p.detectors]
            found = await views[name].propose(proposer.n, Sampling(), tuple(detectors), seeds, left)
            ordered = self.flaw != "takes them as they come"
            pool += sorted(found, key=lambda c: c.index) if ordered else found
        return pool

    def selectable(self, candidate: Candidate) -> bool:
        if self.flaw == "commits flagged":
            return is_selectable(dataclasses.replace(candidate, verdict=None))
        if self.flaw == "commits blanks":
            return candidate.verdict is None
        return is_selectable(candidate)

    async def best(self, context: Context, may: Sequence[Candidate]) -> Candidate:
        if self.flaw == "tells the scorer another context":
            context = dataclasses.replace(context, steps=context.steps[:-1])
        scores = await self.scorer.score(context, may)
        if self.flaw == "takes the first":
            return may[0]
        if self.flaw == "ranks NaN":
            return max(zip(scores, may, strict=False), key=lambda pair: pair[0] or 0)[1]
        if len(scores) != len(may) or any(map(fault_of_score, scores)):
            raise ScorerError(f"bad scores {scores}")
        if self.flaw == "breaks ties backwards":
            return max(zip(scores, range(len(may)), may, strict=True))[2]
        chosen = may[scores.index(max(scores))]
        if self.flaw == "rewrites the step":
            return dataclasses.replace(chosen, text=chosen.text.strip())
        return chosen


FLAWS = {
    "takes the first": "argmax",
    "commits flagged": "flagged",
    "commits blanks": "empty-steps",
    "counts wrongly": "empty-steps",
    "breaks ties backwards": "ties",
    "drops a step": "context",
    "tells the scorer another context": "context",
    "rewrites the step": "provenance",
    "takes them as they come": "permutation",
    "ranks NaN": "bad-scores",
    "forgets a limit": "limits",
    "screens everybody": "screening",
    "draws with old seeds": "seeds",
    "leaves a view open": "closed",
    "loses the solution": "runs",
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_selector_that_is_wrong(flaw: str) -> None:
    caught(lambda: check_selector(lambda p, s, limits: Plain(p, s, limits, flaw)), FLAWS[flaw])


def test_another_right_one_passes() -> None:
    check_selector(lambda p, s, limits: Plain(p, s, limits))


@pytest.mark.parametrize(
    "options",
    [{}, {"on_scorer_error": "degrade"}, {"when_all_flagged": "redraw"}],
    ids=lambda options: next(iter(options.values()), "as it is"),
)
def test_the_librarys_selector_passes(options: dict[str, str]) -> None:
    check_selector(
        lambda p, s, limits: StepwiseSelector(p, s, limits=limits, **options),  # type: ignore[arg-type]
        examples=60,
    )


@pytest.mark.parametrize("wrong", [None, StepwiseSelector, lambda p, s, limits: 3])
def test_wrong_usage_is_a_configuration_error(wrong: object) -> None:
    with pytest.raises(ConfigError):
        check_selector(wrong)  # type: ignore[arg-type]

"""Selection against a brute-force oracle that knows no asyncio, views or pools, and what a solution
tells of itself. The laws of selection alone are those of `check_selector` (tests/kit)."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.answers import extract_answer
from kvrescue.errors import ConfigError
from kvrescue.events import (
    CandidateFinished,
    Event,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.policies.base import Sampling
from kvrescue.rules import Limits, WhenAllFlagged
from kvrescue.seeding import candidate_seed
from kvrescue.selector import Proposer, StepwiseSelector
from kvrescue.types import Candidate, Question, Solution, SolutionStop, StopReason
from tests.core.fakes import FakeDetector, FakePolicy, FakeScorer, Habits, draw, score_of

QUESTION = Question("How many?", "q1")
STOP_WORDS = ("a\n\n", "b\n\n")


@dataclass(frozen=True)
class Setting:
    """A random run: proposers as (n, screened, habits)."""

    proposers: tuple[tuple[int, bool, Habits], ...]
    limits: Limits
    max_step_tokens: int
    stop_at_answer: bool
    when_all_flagged: WhenAllFlagged
    seed: int

    def selector(self, shuffle: int | None = None) -> tuple[StepwiseSelector, list[FakePolicy]]:
        policies = [FakePolicy(habits, shuffle=shuffle) for _, _, habits in self.proposers]
        proposers = [
            Proposer(policy, n, (FakeDetector(),) if screened else (), f"p{place}")
            for place, (policy, (n, screened, _)) in enumerate(
                zip(policies, self.proposers, strict=True)
            )
        ]
        selector = StepwiseSelector(
            proposers,
            FakeScorer(),
            Sampling(max_step_tokens=self.max_step_tokens),
            self.limits,
            stop_at_answer=self.stop_at_answer,
            when_all_flagged=self.when_all_flagged,
        )
        return selector, policies


chances = st.sampled_from([0.0, 0.1, 0.5, 1.0])
settings = st.builds(
    Setting,
    proposers=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.booleans(),
            st.builds(Habits, flagged=chances, eos=st.sampled_from([0.0, 0.05, 0.3])),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    limits=st.builds(
        Limits,
        max_steps=st.integers(1, 12),
        max_output_tokens=st.none() | st.integers(1, 12),
        max_context=st.integers(5, 24),
        max_empty_steps=st.integers(1, 3),
    ),
    max_step_tokens=st.integers(1, 4),
    stop_at_answer=st.booleans(),
    when_all_flagged=st.sampled_from(["stop", "redraw"]),
    seed=st.integers(0, 2**32),
)


def oracle(setting: Setting) -> tuple[list[Candidate], SolutionStop, int]:
    """Algorithm 1, written down as plainly as can be."""
    history: list[str] = []
    chosen: list[Candidate] = []
    limits, used, empty, skipped, draws = setting.limits, 0, 0, 0, 0
    while True:
        left = limits.max_context - 3 - used
        if limits.max_output_tokens is not None:
            left = min(left, limits.max_output_tokens - used)
        if left < 1:
            return chosen, SolutionStop.CONTEXT, skipped
        cap = min(left, setting.max_step_tokens)
        cut = StopReason.LENGTH if cap == setting.max_step_tokens else StopReason.CONTEXT
        ranked: list[tuple[float, int, int, Candidate]] = []
        flags: list[bool] = []
        for place, (n, screened, habits) in enumerate(setting.proposers):
            for index in range(n):
                seed = candidate_seed(setting.seed, "q1", draws, f"p{place}", index)
                found = draw(f"p{place}", index, history, seed, screened, cap, habits, cut)
                flags.append(found.verdict is not None)
                if found.verdict is None and (found.text.strip() or found.stop == StopReason.EOS):
                    score = score_of("".join(history), found.text)
                    ranked.append((-score, place, index, found))
        draws += 1
        if not ranked:
            empty, skipped = empty + 1, skipped + 1
            if all(flags) and (
                setting.when_all_flagged == "stop" or empty == limits.max_empty_steps
            ):
                return chosen, SolutionStop.FLAGGED, skipped
            if empty == limits.max_empty_steps:
                return chosen, SolutionStop.EMPTY, skipped
            continue
        empty = 0
        winner = sorted(ranked, key=lambda entry: entry[:3])[0][3]
        chosen.append(winner)
        history.append(winner.text)
        used += winner.n_tokens
        if winner.stop == StopReason.EOS:
            return chosen, SolutionStop.EOS, skipped
        if setting.stop_at_answer and extract_answer(winner.text) is not None:
            return chosen, SolutionStop.ANSWER, skipped
        if winner.stop == StopReason.CONTEXT or used == limits.max_output_tokens:
            return chosen, SolutionStop.CONTEXT, skipped
        if len(chosen) == limits.max_steps:
            return chosen, SolutionStop.STEPS, skipped


@hypothesis.settings(max_examples=150)
@given(settings)
async def test_the_oracle_commits_the_same_steps(setting: Setting) -> None:
    selector, _ = setting.selector()
    solution = await selector.run(QUESTION, setting.seed)
    steps, stop, skipped = oracle(setting)
    assert [step.candidate for step in solution.steps] == steps
    assert solution.stop == stop
    assert solution.empty_rounds == skipped


@given(settings)
async def test_laws_of_a_solution(setting: Setting) -> None:
    selector, policies = setting.selector()
    events: list[Event] = [event async for event in selector.events(QUESTION, setting.seed)]
    last = events[-1]
    assert isinstance(last, TrajectoryFinished)
    solution = last.solution

    assert solution.text == "".join(step.text for step in solution.steps)
    for step in solution.steps:
        assert step.score is not None
        scored = [score for score in step.scores if score is not None]
        assert step.score == max(scored)
        assert step.candidates[step.scores.index(step.score)] is step.candidate
        for candidate, score in zip(step.candidates, step.scores, strict=True):
            assert candidate.verdict is None or score is None
    assert all(policy.log.balanced for policy in policies)
    assert all(policy.log.opened == 1 for policy in policies)
    scorer = selector.scorer
    assert isinstance(scorer, FakeScorer)
    assert len(scorer.released) == 1
    assert scorer.trajectories <= set(scorer.released)
    for texts in scorer.asked:
        assert len(set(texts)) == len(texts)
    check_events(events, solution)
    check_accounting(events, solution)


def check_events(events: list[Event], solution: Solution) -> None:
    assert isinstance(events[0], TrajectoryStarted)
    commits = [event.step for event in events if isinstance(event, StepCommitted)]
    assert tuple(commits) == solution.steps
    drawn = [event.candidate for event in events if isinstance(event, CandidateFinished)]
    skips = [event for event in events if isinstance(event, RoundSkipped)]
    assert len(skips) == solution.empty_rounds
    told = [candidate for step in solution.steps for candidate in step.candidates]
    assert [candidate for candidate in drawn if candidate in told] == told


def check_accounting(events: list[Event], solution: Solution) -> None:
    drawn = [event.candidate for event in events if isinstance(event, CandidateFinished)]
    assert set(solution.caches) == set(solution.tokens)
    for name, use in solution.tokens.items():
        own = [candidate for candidate in drawn if candidate.policy == name]
        won = [step.candidate for step in solution.steps if step.candidate.policy == name]
        assert use.candidates == len(own)
        assert use.generated == sum(candidate.n_tokens for candidate in own)
        assert use.aborted == sum(candidate.verdict is not None for candidate in own)
        assert use.committed_steps == len(won)
        assert use.committed_tokens == sum(candidate.n_tokens for candidate in won)


async def test_a_round_that_commits_nothing_draws_other_seeds_next_time() -> None:
    policy = FakePolicy(Habits(words=(" \n\n",), eos=0.0))
    selector = StepwiseSelector([Proposer(policy, 2)], FakeScorer())
    solution = await selector.run(QUESTION, 5)
    assert solution.stop is SolutionStop.EMPTY
    assert solution.empty_rounds == Limits().max_empty_steps
    assert solution.steps == ()
    seeds = [seed for _, seeds, _ in policy.log.proposals for seed in seeds]
    assert len(set(seeds)) == len(seeds) == 6


async def test_only_rounds_in_a_row_count() -> None:
    """A commit between two empty rounds starts the count anew."""
    policy = FakePolicy(Habits(words=("a\n\n", "b\n\n", " \n\n"), eos=0.0))
    limits = Limits(max_steps=60, max_empty_steps=12)
    for seed in range(5):
        solution = await StepwiseSelector([Proposer(policy)], FakeScorer(), limits=limits).run(
            QUESTION, seed
        )
        assert solution.stop is SolutionStop.STEPS
        assert solution.empty_rounds > limits.max_empty_steps


async def test_adding_a_helper_leaves_the_bases_first_draw_alone() -> None:
    alone, beside = FakePolicy(), FakePolicy()
    await StepwiseSelector([Proposer(alone, 3)], FakeScorer()).run(QUESTION, 1)
    await StepwiseSelector(
        [Proposer(FakePolicy(), 2, name="helper"), Proposer(beside, 3)], FakeScorer()
    ).run(QUESTION, 1)
    assert alone.log.proposals[0][1] == beside.log.proposals[0][1]


async def test_equal_candidates_are_scored_once() -> None:
    scorer = FakeScorer()
    policy = FakePolicy(Habits(words=("a\n\n",), eos=0.0))
    selector = StepwiseSelector([Proposer(policy, 4)], scorer, limits=Limits(max_steps=2))
    solution = await selector.run(QUESTION)
    assert scorer.asked == [["a\n\n"], ["a\n\n"]]
    assert [len(set(step.scores)) for step in solution.steps] == [1, 1]
    assert [step.candidate.index for step in solution.steps] == [0, 0]


async def test_eos_alone_ends_the_trajectory() -> None:
    policy = FakePolicy(Habits(words=("",), eos=1.0))
    solution = await StepwiseSelector([Proposer(policy)], FakeScorer()).run(QUESTION)
    assert solution.stop is SolutionStop.EOS
    assert solution.text == ""


async def test_answer_is_the_last_closed_box_of_the_whole_text() -> None:
    policy = FakePolicy(Habits(words=("e \\boxed{7}\n\n",), eos=0.0))
    for stop_at_answer, steps in ((True, 1), (False, 2)):
        selector = StepwiseSelector(
            [Proposer(policy)],
            FakeScorer(),
            limits=Limits(max_steps=2),
            stop_at_answer=stop_at_answer,
        )
        solution = await selector.run(QUESTION)
        assert len(solution.steps) == steps
        assert solution.answer == "7"


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_n_must_be_a_positive_number(n: object) -> None:
    with pytest.raises(ConfigError, match="n = "):
        Proposer(FakePolicy(), n)  # type: ignore[arg-type]


def test_proposers_are_checked() -> None:
    with pytest.raises(ConfigError, match="no proposers"):
        StepwiseSelector([], FakeScorer())
    with pytest.raises(ConfigError, match="more than once: \\['base'\\]"):
        StepwiseSelector([Proposer(FakePolicy()), Proposer(FakePolicy())], FakeScorer())
    with pytest.raises(ConfigError, match="when_all_flagged is 'ignore'; valid: stop, redraw"):
        StepwiseSelector([Proposer(FakePolicy())], FakeScorer(), when_all_flagged="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not a kvrescue Detector"):
        Proposer(FakePolicy(), detectors=("gzip",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be a kvrescue Policy"):
        Proposer("torch")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a name"):
        Proposer(FakePolicy(), name=" ")

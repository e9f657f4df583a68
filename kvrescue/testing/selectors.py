"""check_selector: the laws of selection (design, laws 1, 2, 3 and 9), on scripted proposers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from hypothesis import strategies as st

from kvrescue.detectors.base import Detector, DetectorState, TokenEvent
from kvrescue.errors import ConfigError, KVRescueError
from kvrescue.rules import Limits, is_selectable
from kvrescue.scorers.base import Scorer
from kvrescue.testing.fakes import FakePolicy, FakeScorer, Habits, score_of
from kvrescue.testing.laws import Law, broken, checked_examples, search
from kvrescue.testing.selector_laws import (
    ARGMAX,
    BAD_SCORES,
    CLOSED,
    CONTEXT,
    EMPTY,
    FLAGGED,
    LIMITS,
    PERMUTATION,
    PROVENANCE,
    RUNS,
    SCREENING,
    SEEDS,
    SELECTOR_LAWS,
    TIES,
)
from kvrescue.types import Candidate, Question, Solution, SolutionStop, Verdict
from kvrescue.views import Proposer

__all__ = ["SELECTOR_LAWS", "BuildSelector", "Run", "Runnable", "check_selector"]

QUESTION: Final = Question("How many?", "q1")
PROMPT: Final = 3


class Runnable(Protocol):
    """What `check_selector` asks of a selector."""

    async def run(self, question: Question, seed: int = 0) -> Solution:
        """Solve a question."""
        ...


BuildSelector = Callable[[Sequence[Proposer], Scorer, Limits], Runnable]
"""Builds the selector under test from proposers, scorer and limits."""


class Screen(Detector):
    """Never fires; its presence lets a `FakePolicy` flag candidates."""

    kind: ClassVar[str] = "screen"

    def start(self) -> DetectorState:
        return _Silent()


class _Silent(DetectorState):
    def update(self, event: TokenEvent) -> Verdict | None:
        return None


@dataclass(frozen=True)
class Run:
    """A run on scripted proposers: per proposer n, whether it is screened, and its habits."""

    proposers: tuple[tuple[int, bool, Habits], ...]
    limits: Limits
    seed: int = 0

    def policies(self, shuffle: int | None = None) -> list[FakePolicy]:
        """One for each proposer; `shuffle` seeds the order in which it returns its candidates."""
        return [FakePolicy(h, prompt=PROMPT, shuffle=shuffle) for _, _, h in self.proposers]

    def __str__(self) -> str:
        parts = [
            f"p{place}: {n} candidates{', screened' * screened}, flagged {h.flagged:g}, "
            f"eos {h.eos:g}"
            for place, (n, screened, h) in enumerate(self.proposers)
        ]
        return f"{'; '.join(parts)}; {self.limits}; seed {self.seed}"


@dataclass
class _Played:
    """A finished run with what its parts saw."""

    run: Run
    policies: list[FakePolicy]
    scorer: FakeScorer
    solution: Solution = field(init=False)

    def round_of(self, step: int) -> list[Candidate]:
        """The pool that step number `step` was chosen from, in pool order."""
        pool: list[Candidate] = []
        for policy in self.policies:
            rounds = [found for commits, found in policy.log.drawn if commits == step]
            pool += rounds[-1] if rounds else ()
        return pool


def check_selector(build: BuildSelector, *, examples: int = 100) -> None:
    """Search for runs in which a selector breaks one of `SELECTOR_LAWS`.

    Args:
        build: called with proposers, a scorer and limits; returns a selector with
            `async run(question, seed) -> Solution`, as in
            `lambda proposers, scorer, limits: StepwiseSelector(proposers, scorer, limits=limits)`.
        examples: runs to try, each some four times.

    Raises:
        LawBroken: it does.
        ConfigError: `build` cannot be called, or this is called from a coroutine.
    """
    __tracebackhide__ = True
    examples = checked_examples(examples)
    if not callable(build) or isinstance(build, type):
        raise ConfigError(
            f"build = {build!r}: expected a function of (proposers, scorer, limits) that returns a "
            "selector, as in lambda p, s, limits: StepwiseSelector(p, s, limits=limits)"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigError("check_selector runs an event loop of its own: call it from a function")
    who = f"selector {_name(build)!r}"
    with asyncio.Runner() as runner:
        check = _Check(build, who)
        search(
            _runs(),
            lambda run: runner.run(check.run(run)),
            examples=examples,
            component=who,
            runs=RUNS,
        )
        search(
            st.builds(_Spoiled, _runs(), st.sampled_from(sorted(SPOILERS))),
            lambda case: runner.run(check.spoiled(case)),
            examples=max(20, examples // 4),
            component=who,
            runs=BAD_SCORES,
        )


def _name(build: Any) -> str:
    made = build([Proposer(FakePolicy(), name="p0")], FakeScorer(), Limits(max_steps=1))
    if not hasattr(made, "run"):
        raise ConfigError(f"build made {made!r}: expected an object with `async run(...)`")
    return type(made).__name__


SPOILERS: Final[dict[str, Callable[[list[float]], object]]] = {
    "NaN": lambda scores: [math.nan, *scores[1:]],
    "1.5": lambda scores: [1.5, *scores[1:]],
    "-0.5": lambda scores: [*scores[:-1], -0.5],
    "infinity": lambda scores: [math.inf for _ in scores],
    "one score too few": lambda scores: scores[:-1],
    "one score too many": lambda scores: [*scores, 0.5],
    "None": lambda scores: [None for _ in scores],
}


@dataclass(frozen=True)
class _Spoiled:
    run: Run
    fault: str

    def __str__(self) -> str:
        return f"the scorer returns {self.fault}; {self.run}"


def _runs() -> st.SearchStrategy[Run]:
    chances = st.sampled_from((0.0, 0.5, 1.0))
    proposer = st.tuples(
        st.integers(1, 3),
        st.booleans(),
        st.builds(Habits, flagged=chances, eos=st.sampled_from((0.0, 0.1, 0.3))),
    )
    limits = st.builds(
        Limits,
        max_steps=st.integers(1, 8),
        max_output_tokens=st.none() | st.integers(1, 12),
        max_context=st.integers(PROMPT + 2, 24),
        max_empty_steps=st.integers(1, 3),
    )
    return st.builds(
        Run,
        proposers=st.lists(proposer, min_size=1, max_size=3).map(tuple),
        limits=limits,
        seed=st.integers(0, 2**16),
    )


class _Check:
    def __init__(self, build: BuildSelector, who: str) -> None:
        self.build, self.who = build, who

    async def play(
        self, run: Run, scorer: FakeScorer | None = None, shuffle: int | None = None
    ) -> _Played:
        __tracebackhide__ = True
        played = _Played(run, run.policies(shuffle), scorer or FakeScorer())
        proposers = [
            Proposer(policy, n, (Screen(),) if screened else (), f"p{place}")
            for place, (policy, (n, screened, _)) in enumerate(
                zip(played.policies, run.proposers, strict=True)
            )
        ]
        selector = self.build(proposers, played.scorer, run.limits)
        played.solution = await selector.run(QUESTION, run.seed)
        if not isinstance(played.solution, Solution):
            broken(RUNS, self.who, f"run returned {played.solution!r}", "a Solution")
        return played

    async def run(self, run: Run) -> None:
        __tracebackhide__ = True
        played = await self.play(run)
        self.context(played)
        for number in range(len(played.solution.steps)):
            self.step(played, number)
        self.ends(played)
        self.seeds(played)
        again = await self.play(run)
        self.compare(SEEDS, played, again, "in a second run with the same seed")
        shuffled = await self.play(run, shuffle=run.seed + 1)
        self.compare(PERMUTATION, played, shuffled, "where candidates came in another order")

    def compare(self, law: Law, played: _Played, other: _Played, how: str) -> None:
        __tracebackhide__ = True
        one, two = _texts(played.solution), _texts(other.solution)
        if one != two:
            broken(law, self.who, f"{two} {how}", f"{one}")

    def context(self, played: _Played) -> None:
        __tracebackhide__ = True
        texts = _texts(played.solution)
        for place, policy in enumerate(played.policies):
            # After the last step nobody draws again, so views need not see it.
            if policy.log.commits not in (texts, texts[:-1]):
                seen = f"the view of p{place} was given {policy.log.commits}"
                broken(CONTEXT, self.who, seen, f"{texts}, as committed")
        prefixes = ["".join(texts[:count]) for count in range(len(texts) + 1)]
        for context in played.scorer.contexts:
            if context not in prefixes:
                seen = f"the scorer was given the context {context!r}"
                broken(CONTEXT, self.who, seen, f"the beginning of {prefixes[-1]!r}")
        for number in range(len(texts)):
            choice = {c.text for c in played.round_of(number) if is_selectable(c)}
            if len(choice) > 1 and prefixes[number] not in played.scorer.contexts:
                seen = f"step {number} was chosen, but nothing was scored after its context"
                broken(CONTEXT, self.who, seen, f"scores after {prefixes[number]!r}")

    def step(self, played: _Played, number: int) -> None:
        __tracebackhide__ = True
        chosen, pool = played.solution.steps[number].candidate, played.round_of(number)
        which = f"step {number} is candidate {chosen.index} of {chosen.policy}, {chosen.text!r}"
        if chosen not in pool:
            told = [(c.policy, c.index, c.text) for c in pool]
            broken(PROVENANCE, self.who, which, f"one of {told}")
        if chosen.verdict is not None:
            broken(FLAGGED, self.who, f"{which}, which was aborted", "one that was not")
        if not is_selectable(chosen):
            broken(EMPTY, self.who, f"{which}, which is blank", "a step with text, or EOS")
        before = "".join(_texts(played.solution)[:number])
        may = [c for c in pool if is_selectable(c)]
        scores = [score_of(before, c.text) for c in may]
        mine, best = scores[may.index(chosen)], max(scores)
        winner = may[scores.index(best)]
        expected = (
            f"candidate {winner.index} of {winner.policy}, {winner.text!r}, with score {best:g}"
        )
        if mine != best:
            broken(ARGMAX, self.who, f"{which}, with score {mine:g}", expected)
        if winner != chosen:
            broken(TIES, self.who, f"{which}, with the same score", expected)

    def ends(self, played: _Played) -> None:
        __tracebackhide__ = True
        run, solution = played.run, played.solution
        limits, screened = run.limits, [entry[1] for entry in run.proposers]
        for place, policy in enumerate(played.policies):
            expected = (Screen(),) if screened[place] else ()
            for given in policy.log.detectors:
                if given != expected:
                    seen = f"p{place} was screened by {given!r}"
                    broken(SCREENING, self.who, seen, f"{expected!r}")
        if solution.stop is SolutionStop.FLAGGED and not all(screened):
            broken(
                SCREENING, self.who, "it ended as `flagged`", "another end: not all are screened"
            )
        tokens = sum(step.candidate.n_tokens for step in solution.steps)
        told = {
            "steps": (len(solution.steps), limits.max_steps),
            "output tokens": (tokens, limits.max_output_tokens),
            "tokens of context": (PROMPT + tokens, limits.max_context),
        }
        for what, (count, most) in told.items():
            if most is not None and count > most:
                broken(LIMITS, self.who, f"{count} {what}", f"at most {most}")
        in_a_row = _skipped_in_a_row(played)
        if in_a_row > limits.max_empty_steps:
            seen = f"{in_a_row} rounds in a row without a selectable candidate"
            broken(EMPTY, self.who, seen, f"an end after {limits.max_empty_steps}")
        for place, policy in enumerate(played.policies):
            if policy.in_use or policy.log.opened != 1:
                seen = f"p{place}: {policy.log.opened} views opened, {policy.in_use} still open"
                broken(CLOSED, self.who, seen, "one, closed")
        if not played.scorer.trajectories <= set(played.scorer.released):
            broken(CLOSED, self.who, "the scorer was not released", "scorer.release(context)")

    def seeds(self, played: _Played) -> None:
        __tracebackhide__ = True
        seeds = [
            seed
            for policy in played.policies
            for _, given, _ in policy.log.proposals
            for seed in given
        ]
        if len(set(seeds)) != len(seeds):
            twice = next(seed for seed in seeds if seeds.count(seed) > 1)
            broken(SEEDS, self.who, f"the seed {twice} is drawn from twice", "all different")

    async def spoiled(self, case: _Spoiled) -> None:
        __tracebackhide__ = True
        scorer = FakeScorer(change=SPOILERS[case.fault])
        try:
            played = await self.play(case.run, scorer)
        except KVRescueError:
            return
        if scorer.asked and not played.solution.degradations:
            texts = _texts(played.solution)
            broken(
                BAD_SCORES,
                self.who,
                f"it committed {texts} and recorded nothing",
                "a ScorerError, or a Degradation",
            )


def _texts(solution: Solution) -> list[str]:
    return [step.text for step in solution.steps]


def _skipped_in_a_row(played: _Played) -> int:
    """The longest run of rounds without a selectable candidate."""
    most = now = 0
    drawn = [policy.log.drawn for policy in played.policies]
    for rounds in zip(*drawn, strict=False):
        found = [candidate for _, candidates in rounds for candidate in candidates]
        now = 0 if any(is_selectable(candidate) for candidate in found) else now + 1
        most = max(most, now)
    return most

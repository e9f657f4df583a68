"""The selector: the paper's Algorithm 1 for any number of proposers.

A round draws candidates from every proposer at once, drops what detectors aborted, scores what is
left and commits the best; every view then re-bases onto it. The loop knows nothing of models.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvrescue.answers import extract_answer
from kvrescue.errors import ConfigError, DetectorError, KVRescueError, PluginError, located
from kvrescue.events import (
    CandidateFinished,
    Event,
    EvictionFired,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.evictors.firing import Firing, Watch
from kvrescue.policies.base import Sampling
from kvrescue.rules import Limits, OnError, WhenAllFlagged, as_data, best, is_selectable
from kvrescue.scorers.base import Scorer
from kvrescue.scoring import score_pool, typed_error
from kvrescue.tasks import is_async, uninterrupted
from kvrescue.types import (
    Candidate,
    CommittedStep,
    Context,
    Degradation,
    Question,
    Solution,
    SolutionStop,
    StopReason,
    TokenUse,
)
from kvrescue.views import Proposer, Views

__all__ = ["EvictionObserver", "Observer", "Proposer", "StepwiseSelector"]

Observer: TypeAlias = Callable[[Event], None]
"""Called with every event, on the event loop, before anybody else sees it: keep it quick."""

EvictionObserver: TypeAlias = Callable[[EvictionFired], None]
"""Called with every eviction, in the middle of a policy's work: keep it quick."""


class StepwiseSelector:
    """Draws, screens, scores and commits steps until the trajectory ends.

    Args:
        proposers: in the order that breaks ties; names are unique.
        scorer: ranks the surviving candidates of a round.
        sampling: how candidates are drawn.
        limits: where a trajectory ends at the latest.
        stop_at_answer: end at the first committed step that holds a closed `\\boxed{...}`.
        when_all_flagged: `stop` the trajectory when detectors aborted every candidate of a round,
            or `redraw` with new seeds; the latter counts as a round without a selectable
            candidate, of which `limits.max_empty_steps` in a row end the trajectory.
        on_scorer_error: `degrade` ignores invalid scores and commits the first candidate of the
            pool when none is valid; both are recorded in the step.
        on_policy_error: `degrade` goes on without the proposer that failed (see `Views`).
        observers: called with every event.
        eviction_observers: called with every eviction; policies tell of them only where there is
            one.

    Raises:
        ConfigError: no proposer, two of one name, or an unknown choice.
        DetectorError: a detector that can never fire on what its proposer's policy delivers.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        scorer: Scorer,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        stop_at_answer: bool = False,
        when_all_flagged: WhenAllFlagged = "stop",
        on_scorer_error: OnError = "raise",
        on_policy_error: OnError = "raise",
        observers: Sequence[Observer] = (),
        eviction_observers: Sequence[EvictionObserver] = (),
    ) -> None:
        if not isinstance(proposers, Iterable):
            raise ConfigError(f"proposers = {proposers!r}: expected a list of Proposer")
        if not isinstance(scorer, Scorer):
            raise ConfigError(f"scorer = {scorer!r}: expected a kvrescue Scorer")
        self.proposers = tuple(proposers)
        self.scorer = scorer
        self.sampling = sampling if sampling is not None else Sampling()
        self.limits = limits if limits is not None else Limits()
        self.stop_at_answer = stop_at_answer
        self.when_all_flagged = when_all_flagged
        self.on_scorer_error = on_scorer_error
        self.on_policy_error = on_policy_error
        self.observers = tuple(observers)
        self.eviction_observers = tuple(eviction_observers)
        self._check()
        for proposer in self.proposers:
            proposer.policy.expect(proposer.n)
        self.rules = as_data(
            {proposer.name: (proposer.n, proposer.detectors) for proposer in self.proposers},
            self.sampling,
            self.limits,
            stop_at_answer=stop_at_answer,
            when_all_flagged=when_all_flagged,
            on_scorer_error=on_scorer_error,
            on_policy_error=on_policy_error,
        )
        """What decides beside models and scorer, as configuration data."""

    async def run(self, question: Question, seed: int = 0) -> Solution:
        """Solve one question.

        Raises:
            InputError: the question does not fit some policy's context.
            PolicyError, ScorerError: a part failed and is not configured to degrade.
            AuditError: an evictor should have fired and never did.
        """
        solution: Solution | None = None
        async with contextlib.aclosing(self.events(question, seed)) as events:
            async for event in events:
                if isinstance(event, TrajectoryFinished):
                    solution = event.solution
        if solution is None:
            raise KVRescueError("the trajectory ended without a solution")
        return solution

    async def events(self, question: Question, seed: int = 0) -> AsyncGenerator[Event]:
        """Solve one question, telling what happens; the last event holds the solution.

        Views are closed when the last event arrives, and also when the caller closes the generator
        early (`contextlib.aclosing`), an error is raised or the task is cancelled.
        """
        async with contextlib.aclosing(_Trajectory(self, question, seed).events()) as events:
            async for event in events:
                self._tell(event)
                yield event

    def _tell(self, event: Event) -> None:
        _call(self.observers, event)

    def _check(self) -> None:
        if not self.proposers:
            raise ConfigError("no proposers: at least one must draw candidates")
        names = Counter(proposer.name for proposer in self.proposers)
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise ConfigError(f"proposer names must differ; used more than once: {twice}")
        for name, observers in (
            ("observers", self.observers),
            ("eviction_observers", self.eviction_observers),
        ):
            for place, observer in enumerate(observers):
                if is_async(observer):
                    raise ConfigError(
                        f"{name}[{place}] = {observer!r} is async: observers are called plainly, "
                        "and nothing would await it; give a plain function"
                    )
        choices = {
            "when_all_flagged": (self.when_all_flagged, ("stop", "redraw")),
            "on_scorer_error": (self.on_scorer_error, ("raise", "degrade")),
            "on_policy_error": (self.on_policy_error, ("raise", "degrade")),
        }
        for option, (value, valid) in choices.items():
            if value not in valid:
                raise ConfigError(f"{option} is {value!r}; valid: {', '.join(valid)}")
        for proposer in self.proposers:
            source = dataclasses.replace(
                proposer.policy.source_of(proposer.name),
                max_step_tokens=self.sampling.max_step_tokens,
            )
            for detector in proposer.detectors:
                where = f"proposer {proposer.name!r}: detector {detector.kind!r}"
                try:
                    detector.check(source)
                except KVRescueError as error:
                    raise located(where, error) from error.__cause__
                except Exception as error:
                    raise DetectorError(
                        f"{where}: its check failed: {type(error).__name__}: {error}"
                    ) from error


def _call(observers: Sequence[Callable[[Any], None]], event: Event | EvictionFired) -> None:
    for observer in observers:
        try:
            observer(event)
        except KVRescueError:
            raise
        except Exception as error:
            name = getattr(observer, "__qualname__", type(observer).__qualname__)
            raise PluginError(
                f"observer {name!r} failed on {type(event).__name__}: "
                f"{type(error).__name__}: {error}"
            ) from error


@dataclass(slots=True)
class _Trajectory:
    """The state of one run of Algorithm 1."""

    selector: StepwiseSelector
    question: Question
    seed: int
    context: Context = field(init=False)
    views: Views = field(init=False)
    uses: dict[str, TokenUse] = field(init=False)
    degradations: list[Degradation] = field(default_factory=list)
    output_tokens: int = 0
    draws: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    stop: SolutionStop | None = None

    def __post_init__(self) -> None:
        proposers = self.selector.proposers
        self.context = Context(self.question)
        self.views = Views(
            proposers,
            self.question,
            self.degradations,
            degrade=self.selector.on_policy_error == "degrade",
            watch=self._watch if self.selector.eviction_observers else None,
        )
        self.uses = {proposer.name: TokenUse() for proposer in proposers}

    async def events(self) -> AsyncGenerator[Event]:
        try:
            await self.views.open()
            self.views.require_room(self.selector.limits.max_context)
            yield self._started()
            while self.stop is None:
                max_tokens = self._tokens_left()
                if max_tokens < 1:
                    self.stop = SolutionStop.CONTEXT
                    break
                known = len(self.degradations)
                candidates = await self._draw(max_tokens)
                for candidate in candidates:
                    yield CandidateFinished(
                        self.question.id,
                        self.draws - 1,
                        len(self.context.steps),
                        candidate,
                        self.seed,
                    )
                yield await self._decide(candidates, known)
        except BaseException as error:
            try:
                await uninterrupted(self._close())
            except Exception as second:
                if isinstance(error, GeneratorExit):
                    raise  # the caller lost interest in the events, not in failures
                # What failed first is what the caller has to see.
                error.add_note(f"then, while closing: {type(second).__name__}: {second}")
            raise
        await uninterrupted(self._close())
        yield TrajectoryFinished(self._solution(self.stop))

    def _started(self) -> TrajectoryStarted:
        views, proposers = self.views, self.selector.proposers
        return TrajectoryStarted(
            self.question,
            self.seed,
            tuple(self.uses),
            views.stats(),
            views.rooms(),
            {proposer.name: proposer.policy.source_of(proposer.name) for proposer in proposers},
            self.selector.rules,
        )

    def _watch(self, name: str) -> Watch:
        """A listener to the evictions of a proposer's view, which tells the observers."""

        def watch(firing: Firing) -> None:
            rebased = firing.when == "rebase"  # the step is committed by then
            step = len(self.context.steps) - rebased
            event = EvictionFired.of(firing, self.question.id, self.seed, name, step)
            _call(self.selector.eviction_observers, event)

        return watch

    async def _close(self) -> None:
        try:
            await self.views.close()
        finally:
            await self._release()

    async def _release(self) -> None:
        try:
            await self.selector.scorer.release(self.context)
        except Exception as error:
            typed = typed_error(self.selector.scorer, error)
            if self.selector.on_scorer_error == "raise":
                raise typed from typed.__cause__
            self.degradations.append(Degradation("scorer", str(typed)))

    async def _draw(self, max_tokens: int) -> list[Candidate]:
        candidates = await self.views.propose(
            self.context, self.draws, self.selector.sampling, max_tokens, self.seed
        )
        self.draws += 1
        for candidate in candidates:
            use = self.uses[candidate.policy]
            self.uses[candidate.policy] = dataclasses.replace(
                use,
                candidates=use.candidates + 1,
                generated=use.generated + candidate.n_tokens,
                aborted=use.aborted + (candidate.verdict is not None),
            )
        return candidates

    async def _decide(self, candidates: Sequence[Candidate], known: int) -> Event:
        """Commit the best candidate of a round, or skip it when there is none to choose from.

        Args:
            candidates: of the round, in pool order.
            known: how many degradations there were before it.
        """
        places = [place for place, candidate in enumerate(candidates) if is_selectable(candidate)]
        if not places:
            return self._skip(candidates)
        self.skipped_in_a_row = 0
        scores = await self._score([candidates[place] for place in places])
        chosen = best(scores)
        by_place: dict[int, float | None] = dict(zip(places, scores, strict=True))
        committed = CommittedStep(
            number=len(self.context.steps),
            candidate=candidates[places[chosen]],
            score=scores[chosen],
            candidates=tuple(candidates),
            scores=tuple(by_place.get(place) for place in range(len(candidates))),
            degradations=tuple(self.degradations[known:]),
        )
        await self._commit(committed)
        return StepCommitted(self.question.id, committed, self.views.stats(), self.seed)

    async def _commit(self, committed: CommittedStep) -> None:
        winner = committed.candidate
        self.context = dataclasses.replace(self.context, steps=(*self.context.steps, committed))
        self.output_tokens += winner.n_tokens
        use = self.uses[winner.policy]
        self.uses[winner.policy] = dataclasses.replace(
            use,
            committed_steps=use.committed_steps + 1,
            committed_tokens=use.committed_tokens + winner.n_tokens,
        )
        self.stop = self._end_after(winner)
        # After the last step nobody draws again, so no view needs to advance.
        if self.stop is None and not await self.views.commit(winner):
            self.stop = SolutionStop.CONTEXT

    def _end_after(self, winner: Candidate) -> SolutionStop | None:
        limits = self.selector.limits
        if winner.stop is StopReason.EOS:
            return SolutionStop.EOS
        if self.selector.stop_at_answer and extract_answer(winner.text) is not None:
            return SolutionStop.ANSWER
        limit = limits.max_output_tokens
        if winner.stop is StopReason.CONTEXT or (limit is not None and self.output_tokens >= limit):
            return SolutionStop.CONTEXT
        if len(self.context.steps) >= limits.max_steps:
            return SolutionStop.STEPS
        return None

    def _skip(self, candidates: Sequence[Candidate]) -> RoundSkipped:
        self.skipped += 1
        self.skipped_in_a_row += 1
        flagged = all(candidate.verdict is not None for candidate in candidates)
        # Where some proposer is unscreened, it failed just now (`on_policy_error`) and may return.
        screened = all(proposer.detectors for proposer in self.selector.proposers)
        enough = self.skipped_in_a_row >= self.selector.limits.max_empty_steps
        if enough or (flagged and screened and self.selector.when_all_flagged == "stop"):
            self.stop = SolutionStop.FLAGGED if flagged else SolutionStop.EMPTY
        return RoundSkipped(
            question_id=self.question.id,
            draw=self.draws - 1,
            step=len(self.context.steps),
            reason="flagged" if flagged else "empty",
            in_a_row=self.skipped_in_a_row,
            seed=self.seed,
        )

    async def _score(self, pool: Sequence[Candidate]) -> list[float | None]:
        selector = self.selector
        return await score_pool(
            selector.scorer,
            self.context,
            pool,
            self.degradations,
            degrade=selector.on_scorer_error == "degrade",
        )

    def _tokens_left(self) -> int:
        limits = self.selector.limits
        room = self.views.room(limits.max_context)
        if limits.max_output_tokens is None:
            return room
        return min(room, limits.max_output_tokens - self.output_tokens)

    def _solution(self, stop: SolutionStop) -> Solution:
        caches = self.views.caches
        return Solution(
            question=self.question,
            steps=self.context.steps,
            stop=stop,
            seed=self.seed,
            answer=extract_answer(self.context.text),
            tokens=dict(self.uses),
            caches={name: caches[name] for name in self.uses if name in caches},
            degradations=tuple(self.degradations),
            empty_rounds=self.skipped,
        )

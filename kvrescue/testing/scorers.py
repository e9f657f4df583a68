"""check_scorer: the laws of a scorer (design, law 1: what the selector relies on)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from kvrescue.errors import ConfigError, KVRescueError
from kvrescue.scorers.base import Scorer, ScorerSpec
from kvrescue.scoring import fault_of_score
from kvrescue.testing.components import OPTIONS, check_options
from kvrescue.testing.laws import Law, LawBroken, Laws, broken, checked_examples, search
from kvrescue.testing.loops import Built, Loop, building
from kvrescue.types import Candidate, CommittedStep, Context, Question, StopReason

__all__ = ["SCORER_LAWS", "Pool", "check_scorer"]

RUNS: Final = Law(
    "runs",
    "Ordinary steps are scored without an error.",
    "The run ends with a ScorerError, or commits steps unscored where errors degrade.",
    "One candidate, equal candidates, a context without steps and one of several all occur.",
)
COUNT: Final = Law(
    "count",
    "A list of one score per candidate, in their order; an empty one for none.",
    "The run ends with a ScorerError: nobody knows which candidate a score belongs to.",
    "Return a list as long as `candidates`; score equal candidates again, do not merge them.",
)
FINITE: Final = Law(
    "finite",
    "Every score is a finite number.",
    "NaN compares with nothing: an argmax over it picks any candidate. kvrescue ends the run.",
    "Guard the division or logarithm that makes it, and check the model's logits.",
)
UNIT: Final = Law(
    "unit-interval",
    "Every score lies in [0, 1].",
    "The run ends with a ScorerError; scores of several scorers could not be compared.",
    "Return probabilities: a sigmoid or softmax of logits, not logits.",
)
DETERMINISTIC: Final = Law(
    "deterministic",
    "Asked again, the same candidates get the same scores (within `tolerance`).",
    "A seed no longer says what a run commits.",
    "Turn off dropout and sampling (temperature 0), and keep no running averages.",
)
ORDER: Final = Law(
    "order",
    "Candidates in another order get their own scores in that order.",
    "Which step is committed depends on which proposer comes first.",
    "Return scores in the order of `candidates`; undo any sorting by length.",
)
COMPANIONS: Final = Law(
    "companions",
    "A candidate's score does not depend on which others are scored with it (within `tolerance`).",
    "Scores of one step change with N and with duplicates, so thresholds and calibration mean "
    "nothing, and the winner depends on who else was drawn.",
    "Normalise per candidate, not over the pool; mask padding in batches.",
)
MEMORY: Final = Law(
    "memory",
    "A trajectory that grew step by step is scored like a new one with the same steps.",
    "What is kept from call to call (a prefix cache) is not what the context says: late steps are "
    "judged by another history.",
    "Key what you keep by `context.trajectory`, and advance it to all of `context.steps`.",
)
AWKWARD: Final = Law(
    "awkward-texts",
    "Empty, blank, non-ASCII and control-character steps get a score; one that is too long gets a "
    "score or a KVRescueError, and the scorer can be used on.",
    "One odd candidate ends the run with a traceback, or spoils the scores after it.",
    "Handle an empty list of tokens, and raise a ScorerError that names the limit where a text is "
    "too long.",
)
CONCURRENT: Final = Law(
    "concurrent",
    "Trajectories that are scored at the same time get the scores that they get alone.",
    "Problems are solved side by side: one is judged by another one's context.",
    "Keep nothing on `self` across an `await` that belongs to one call; key it by trajectory.",
)
CANCELLED: Final = Law(
    "cancelled",
    "After a call was cancelled, the scorer gives the same scores as before.",
    "Ctrl-C in one run of a notebook, or a timeout, spoils all that follows.",
    "Release what a call holds in `finally`, and drop a session that was left half-way.",
)
RELEASED: Final = Law(
    "released",
    "`release` may be called twice or for a trajectory never seen, and changes no score.",
    "A run fails while it is closed, which hides what ended it.",
    "Use `dict.pop(context.trajectory, None)`.",
)
CLOSE: Final = Law(
    "close",
    "`aclose` may be called twice.",
    "A program that shares a scorer between runs fails while it ends.",
    "Make the second call do nothing.",
)

SCORER_LAWS: Final[Laws] = (
    OPTIONS,
    RUNS,
    COUNT,
    FINITE,
    UNIT,
    DETERMINISTIC,
    ORDER,
    COMPANIONS,
    MEMORY,
    AWKWARD,
    CONCURRENT,
    CANCELLED,
    RELEASED,
    CLOSE,
)
"""What `check_scorer` searches for, in this order."""

QUESTIONS: Final = ("Let x = 3. What is x + 4?", "Tom has 12 apples and eats 5. How many are left?")
STEPS: Final = (
    "Let x = 3.\n\n",
    "So x + 4 = 7.\n\n",
    "First, 12 apples.\n\n",
    "leaving 7;\n\n",
    "é 文字 😀\n\n",
    "The answer is \\boxed{7}.",
)
AWKWARD_TEXTS: Final = (
    "",
    " \n\n",
    "\n\n",
    "😀" * 5,
    "e\u0301\u200d\ufeff",
    "\x00\x07",
    "<extra_0>",
)
LONG_TEXT: Final = "so it goes, " * 20_000


@dataclass(frozen=True)
class Pool:
    """Candidates after a context: question, committed steps, candidate steps, as texts."""

    question: str
    steps: tuple[str, ...]
    candidates: tuple[str, ...]

    def context(self, steps: int | None = None) -> Context:
        """A new trajectory with the first `steps` of the steps (None: all)."""
        context = Context(Question(self.question))
        for text in self.steps[:steps]:
            context = _grown(context, text)
        return context

    def pool(self) -> list[Candidate]:
        """The candidates, in their order."""
        return [_candidate(text, index) for index, text in enumerate(self.candidates)]


def _grown(context: Context, text: str) -> Context:
    step = CommittedStep(len(context.steps), _candidate(text), 0.5)
    return Context(context.question, (*context.steps, step), context.trajectory)


def _candidate(text: str, index: int = 0) -> Candidate:
    """A step of an unknown tokenizer: it travels as text."""
    stop = StopReason.SEPARATOR if text.endswith("\n\n") else StopReason.EOS
    return Candidate("base", index, text, (), stop)


def check_scorer(
    scorer: Scorer | ScorerSpec | Callable[[], Any],
    *,
    tolerance: float = 1e-4,
    examples: int = 8,
) -> None:
    """Search for contexts and candidates on which a scorer breaks one of `SCORER_LAWS`.

    Args:
        scorer: a scorer, which stays open; or its spec, or a function that makes one (or a
            coroutine of one), which is built here and closed, twice.
        tolerance: by how much two scores of one candidate may differ; batches round differently.
        examples: pools to try, each asked some ten times.

    Raises:
        LawBroken: it does.
        ConfigError: not a scorer, or called from a coroutine.
    """
    __tracebackhide__ = True
    examples = checked_examples(examples)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
        raise ConfigError(f"tolerance = {tolerance!r}: expected a number of 0 or more")
    if isinstance(scorer, ScorerSpec):
        check_options("scorer", scorer)
    with building(scorer, Scorer, ScorerSpec, "scorer") as (built, run):
        check = _Check(built, float(tolerance))
        who = built.name
        search(
            _pools(),
            lambda case: run(check.pool(case)),
            examples=examples,
            component=who,
            runs=RUNS,
        )
        last = Pool(QUESTIONS[0], STEPS[:1], STEPS[1:4])
        _once(run, check.awkward, last, AWKWARD, who)
        for part, law in (
            (check.concurrent, CONCURRENT),
            (check.cancelled, CANCELLED),
            (check.released, RELEASED),
        ):
            _once(run, part, last, law, who)
        if built.owned:
            _once(run, check.close, last, CLOSE, who)


def _once(run: Loop, part: Any, case: Pool, law: Law, who: str) -> None:
    __tracebackhide__ = True
    search(st.just(case), lambda pool: run(part(pool)), examples=1, component=who, runs=law)


def _pools() -> st.SearchStrategy[Pool]:
    texts = st.sampled_from(STEPS)
    return st.builds(
        Pool,
        question=st.sampled_from(QUESTIONS),
        steps=st.lists(texts, max_size=2).map(tuple),
        candidates=st.lists(texts, min_size=1, max_size=4).map(tuple),
    )


class _Check:
    def __init__(self, built: Built, tolerance: float) -> None:
        self.scorer: Scorer = built.part
        self.who, self.tolerance = built.name, tolerance

    async def ask(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """Scores that are known to be scores."""
        __tracebackhide__ = True
        given: Any = await self.scorer.score(context, candidates)
        wanted = f"a list of {len(candidates)}"
        if isinstance(given, Mapping | set | str | bytes) or not hasattr(given, "__len__"):
            broken(COUNT, self.who, f"a {type(given).__name__}", wanted)
        if len(given) != len(candidates):
            seen = f"{len(given)} scores for {len(candidates)} candidates"
            broken(COUNT, self.who, seen, wanted)
        scores = []
        for candidate, score in zip(candidates, given, strict=True):
            fault = fault_of_score(score)
            if fault is not None:
                law = UNIT if "outside" in fault else FINITE
                wanted = "a number in [0, 1]"
                broken(law, self.who, f"score of {candidate.text!r}: {fault}", wanted)
            scores.append(float(score))
        return scores

    async def pool(self, case: Pool) -> None:
        __tracebackhide__ = True
        context, pool = case.context(), case.pool()
        scores = await self.ask(context, pool)
        await self.steady(context, pool, scores, 1)
        try:
            await self.variants(case, context, pool, scores)
        except LawBroken:
            await self.steady(context, pool, scores, 5)  # or is it chance?
            raise

    async def steady(
        self, context: Context, pool: Sequence[Candidate], scores: Sequence[float], times: int
    ) -> None:
        __tracebackhide__ = True
        for _ in range(times):
            again = await self.ask(context, pool)
            self.compare(DETERMINISTIC, pool, scores, again, "asked again")

    async def variants(
        self, case: Pool, context: Context, pool: list[Candidate], scores: Sequence[float]
    ) -> None:
        __tracebackhide__ = True
        turned = await self.ask(context, pool[::-1])
        self.compare(ORDER, pool, scores, turned[::-1], "in reverse order")
        alone = [(await self.ask(context, [candidate]))[0] for candidate in pool]
        self.compare(COMPANIONS, pool, alone, scores, f"among {len(pool)}", "alone")
        growing = case.context(steps=0)
        for text in case.steps:
            await self.ask(growing, [_candidate(text), *pool])
            growing = _grown(growing, text)
        grown = await self.ask(growing, pool)
        self.compare(MEMORY, pool, scores, grown, "after growing step by step", "anew")
        if await self.ask(context, []):
            broken(COUNT, self.who, "scores for no candidates", "[]")
        for known in (context, growing):
            await self.scorer.release(known)

    def compare(
        self,
        law: Law,
        pool: Sequence[Candidate],
        first: Sequence[float],
        then: Sequence[float],
        how: str,
        before: str = "at first",
    ) -> None:
        __tracebackhide__ = True
        for candidate, one, two in zip(pool, first, then, strict=True):
            if not math.isclose(one, two, rel_tol=0.0, abs_tol=self.tolerance):
                seen = f"{candidate.text!r} has {one:.6g} {before} and {two:.6g} {how}"
                broken(law, self.who, seen, f"the same within {self.tolerance:g}")

    async def awkward(self, case: Pool) -> None:
        __tracebackhide__ = True
        context, pool = case.context(), case.pool()
        before = await self.ask(context, pool)
        for text in (*AWKWARD_TEXTS, LONG_TEXT):
            long = text is LONG_TEXT
            shown = f"{text[:20]!r}..., {len(text):,} characters" if long else repr(text)
            odd = _candidate(text, len(pool))
            try:
                scores = await self.ask(context, [odd] if long else [*pool, odd])
            except KVRescueError as error:
                if not long:
                    broken(AWKWARD, self.who, f"{shown}: {error}", "a score")
            except AssertionError:
                raise
            except Exception as error:
                seen = f"{shown}: {type(error).__name__}: {error}"
                broken(AWKWARD, self.who, seen, "a score, or a KVRescueError if too long")
            else:
                if not long:
                    self.compare(AWKWARD, pool, before, scores[:-1], f"beside {shown}", "without")
        after = await self.ask(context, pool)
        self.compare(AWKWARD, pool, before, after, "after awkward texts")
        await self.scorer.release(context)

    async def concurrent(self, case: Pool) -> None:
        __tracebackhide__ = True

        async def play(number: int) -> list[float]:
            context = Context(Question(QUESTIONS[number % len(QUESTIONS)], f"q{number}"))
            scores: list[float] = []
            for text in STEPS[: 1 + number % 3]:
                texts = (*STEPS[: 1 + number % 2], text)
                scores += await self.ask(context, [_candidate(t, i) for i, t in enumerate(texts)])
                context = _grown(context, text)
            await self.scorer.release(context)
            return scores

        alone = [await play(number) for number in range(4)]
        together = await asyncio.gather(*(play(number) for number in range(4)))
        for number, (one, two) in enumerate(zip(alone, together, strict=True)):
            for a, b in zip(one, two, strict=True):
                if abs(a - b) > self.tolerance:
                    seen = f"trajectory {number} of 4: {a:.6g} alone and {b:.6g} beside the others"
                    broken(CONCURRENT, self.who, seen, f"the same within {self.tolerance:g}")

    async def cancelled(self, case: Pool) -> None:
        __tracebackhide__ = True
        context, pool = case.context(), case.pool()
        before = await self.ask(context, pool)
        for turns in (1, 2, 3, 1, 2, 3):
            running = asyncio.ensure_future(self.scorer.score(context, pool))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            after = await self.ask(context, pool)
            self.compare(CANCELLED, pool, before, after, "after a call was cancelled")
        await self.scorer.release(context)

    async def released(self, case: Pool) -> None:
        __tracebackhide__ = True
        context, pool = case.context(), case.pool()
        before = await self.ask(context, pool)
        for known in (context, context, case.context()):
            await self.scorer.release(known)
        after = await self.ask(context, pool)
        self.compare(RELEASED, pool, before, after, "after `release`")
        await self.scorer.release(context)

    async def close(self, case: Pool) -> None:
        await self.scorer.aclose()
        await self.scorer.aclose()

"""Trajectories that are made up: what is drawn and how it scores is written down, no model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvrescue.config import load_config
from kvrescue.evaluation.grading.grade import GradingRule
from kvrescue.evaluation.methods import Method
from kvrescue.evaluation.problems import Problem, ProblemSet
from kvrescue.evaluation.runs.folder import RunWriter
from kvrescue.evaluation.runs.record import Failure, Record
from kvrescue.evaluation.runs.settings import Setting, setting_of
from kvrescue.events import (
    CandidateFinished,
    Event,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.types import (
    CacheStats,
    Candidate,
    CommittedStep,
    Degradation,
    Question,
    Solution,
    SolutionStop,
    StopReason,
    TokenUse,
    Verdict,
)
from tests.evaluation.trajectories.runs import record_of

PROMPT = 10
BOUND = 12
HOSTILE = (
    "</script><script>window.broken = true; alert(1)</script>",
    "<!-- <script> --> <img src=x onerror='window.broken = true'>",
    "]]> &lt;b&gt; &amp; \u2028 \u2029 ${1} {{title}} \\u003c",
    "\u202eright to left\u202c مرحبا שלום",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \U0001f9ee",
    "nul \x00, bell \x07, escape \x1b[31m, delete \x7f, lone half \ud83d, mark \ufeff",
    "\n",
    "",
    "x" * 100_000,
)
"""What a model might write that a page has to show as text."""


@dataclass(frozen=True)
class Drawn:
    """One candidate: a score, or a verdict, or (blank) neither."""

    source: str
    text: str
    score: float | None = None
    verdict: Verdict | None = None


def entropy(value: float, position: int, threshold: float = 2.5) -> Verdict:
    reason = f"incoherent: mean entropy {value:.3f} exceeds {threshold:g}"
    return Verdict("entropy", reason, position, value, threshold)


def told(
    question: Question,
    rounds: Sequence[Sequence[Drawn]],
    *,
    proposers: tuple[str, ...] = ("base", "helper"),
    stop: SolutionStop = SolutionStop.EOS,
    answer: str | None = None,
    seed: int = 0,
    degradations: tuple[Degradation, ...] = (),
) -> list[Event]:
    """The events of a trajectory. A round without a score commits nothing."""
    length, caches = PROMPT, _caches(proposers, PROMPT)
    events: list[Event] = [TrajectoryStarted(question, seed, proposers, caches)]
    steps: list[CommittedStep] = []
    uses = dict.fromkeys(proposers, TokenUse())
    skipped = 0
    for draw, pool in enumerate(rounds):
        candidates = _candidates(pool)
        for candidate in candidates:
            uses[candidate.policy] = _added(uses[candidate.policy], candidate)
        events += [
            CandidateFinished(question.id, draw, len(steps), candidate) for candidate in candidates
        ]
        scores = [drawn.score for drawn in pool]
        if not any(score is not None for score in scores):
            skipped += 1
            flagged = all(drawn.verdict is not None for drawn in pool)
            reason = "flagged" if flagged else "empty"
            events.append(RoundSkipped(question.id, draw, len(steps), reason, 1))
            continue
        place = max(range(len(pool)), key=lambda place: (_rank(scores[place]), -place))
        winner = candidates[place]
        length += winner.n_tokens
        use = uses[winner.policy]
        uses[winner.policy] = replace(
            use,
            committed_steps=use.committed_steps + 1,
            committed_tokens=use.committed_tokens + winner.n_tokens,
        )
        step = CommittedStep(len(steps), winner, scores[place], candidates, tuple(scores))
        steps.append(step)
        caches = _caches(proposers, length)
        events.append(StepCommitted(question.id, step, caches))
    solution = Solution(
        question,
        tuple(steps),
        stop,
        seed,
        answer,
        uses,
        caches,
        degradations,
        empty_rounds=skipped,
    )
    return [*events, TrajectoryFinished(solution)]


def _rank(score: float | None) -> float:
    return -1.0 if score is None else score


def _added(use: TokenUse, candidate: Candidate) -> TokenUse:
    return replace(
        use,
        candidates=use.candidates + 1,
        generated=use.generated + candidate.n_tokens,
        aborted=use.aborted + (candidate.verdict is not None),
    )


def _candidates(pool: Sequence[Drawn]) -> tuple[Candidate, ...]:
    found: list[Candidate] = []
    for drawn in pool:
        index = sum(candidate.policy == drawn.source for candidate in found)
        stop = StopReason.ABORTED if drawn.verdict else StopReason.SEPARATOR
        tokens = tuple(map(ord, drawn.text))
        found.append(
            Candidate(drawn.source, index, drawn.text, tokens, stop, verdict=drawn.verdict)
        )
    return tuple(found)


def _caches(proposers: Sequence[str], length: int) -> dict[str, CacheStats]:
    """The base evicts to its bound, the others keep everything."""
    caches = {}
    for name in proposers:
        bound = BOUND if name == "base" else None
        held = length if bound is None else min(length, bound)
        dropped = length - held
        caches[name] = CacheStats(length, held, held, int(dropped > 0), dropped, bound)
    return caches


def settings_of(
    methods: Sequence[Method] = ("best_of_n", "kv_rescue"), seed: int = 0, budget: int = 16
) -> dict[Method, Setting]:
    """Settings of the tiny trio, which nobody runs."""
    config = load_config("tiny", [f"proposers.base.policy.evictor.budget={budget}"])
    return {method: setting_of(config, method, 2, budget, seed) for method in methods}


def problems_of(
    names: Mapping[str, tuple[str, str]], rule: GradingRule = GradingRule.EXACT
) -> ProblemSet:
    """A problem set: question and right answer by id."""
    problems = (Problem(name, *told) for name, told in names.items())
    return ProblemSet("made", tuple(problems), rule)


def write_run(
    path: Path,
    problems: ProblemSet,
    settings: Mapping[Method, Setting],
    events: Mapping[tuple[Method, str], Sequence[Event] | Failure | Record],
    traced: bool = True,
) -> Path:
    """A run's folder; what is not given was not run."""
    with RunWriter(path, problems, settings.values(), "made", {"version": "test"}) as writer:
        for (method, name), found in events.items():
            setting = settings[method]
            problem = next(problem for problem in problems if problem.id == name)
            if isinstance(found, Record):
                writer.write(found)
            elif isinstance(found, Failure):
                key, digest = setting.key, problem.digest
                writer.write(Record(key, name, digest, problem.answer, failure=found))
            else:
                writer.write(record_of(setting, problem, list(found)), found if traced else ())
    return path

"""Measured values and runs that are made up, no model behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from kvrescue.calibration.choosing import Value
from kvrescue.calibration.samples import Group, Sample, Samples
from kvrescue.config import load_config
from kvrescue.detectors import Detector, EntropyDetector, GzipDetector, NgramDetector
from kvrescue.evaluation.methods import Method
from kvrescue.evaluation.problems import Problem
from kvrescue.evaluation.runs.folder import Run, RunWriter
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.runs.settings import Setting, setting_of
from kvrescue.events import (
    CandidateFinished,
    Event,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.types import (
    Candidate,
    CommittedStep,
    Question,
    Solution,
    SolutionStop,
    StopReason,
    Verdict,
)
from tests.evaluation.runs_parts import problem_set

DETECTORS: dict[str, Detector] = {
    "entropy": EntropyDetector(),
    "gzip": GzipDetector(),
    "ngram": NgramDetector(),
}
"""Strictly above, strictly below, and from a whole number on."""


def values(detector: Detector, problems: str, most: int = 60) -> st.SearchStrategy[list[Value]]:
    """Legal and common values of a detector, many of them equal, some of them missing."""
    if isinstance(detector, NgramDetector):
        value: st.SearchStrategy[float] = st.integers(0, 12).map(float)
    else:
        top = 8.0 if isinstance(detector, EntropyDetector) else 1.2
        value = st.integers(1, 40).map(lambda place: top * place / 40) | st.floats(0.01, top)
    problem = st.integers(0, 25).map(lambda place: f"{problems}{place}")
    return st.lists(st.tuples(problem, st.none() | value | value), max_size=most)


def sample(problem: str, *measured: float | None, **changed: Any) -> Sample:
    """A committed step of the evicted base that ended right, unless told otherwise."""
    plain = Sample(problem, "evicted", 16, measured, True, True, True, False, False)
    return replace(plain, **changed)


def bad(problem: str, *measured: float | None, **changed: Any) -> Sample:
    """A candidate that ran to its limit on the way to a wrong answer."""
    return sample(problem, *measured, **{"right": False, "whole": False, "cut": True, **changed})


def samples(found: Iterable[Sample], *detectors: Detector, **facts: Any) -> Samples:
    known = detectors or (EntropyDetector(),)
    made = Samples(known, tuple(range(len(known))), ("made",), ("hand-made",), dict(facts))
    made.found = list(found)
    return made


def others(count: int, group: Group, *measured: float | None) -> list[Sample]:
    return [sample(f"p{i}", *measured, group=group, budget=None) for i in range(count)]


# -- runs on disk -----------------------------------------------------------------------------

OVERRIDES = (
    "proposers.base.detectors.entropy.guard=0",
    "proposers.base.detectors.entropy.window=2",
)


def setting(
    method: Method, budget: int = 16, overrides: Sequence[str] = (), seed: int = 0
) -> Setting:
    changed = (f"proposers.base.policy.evictor.budget={budget}", *OVERRIDES, *overrides)
    return setting_of(load_config("tiny", changed), method, 1, budget, seed)


def candidate(
    policy: str,
    entropies: Sequence[float],
    stop: StopReason = StopReason.SEPARATOR,
    tokenizer: str = "tok",
    verdict: Verdict | None = None,
) -> Candidate:
    """Words that do not repeat, with these entropies."""
    ids = tuple(range(len(entropies)))
    text = " ".join(f"w{i}" for i in ids)
    return Candidate(policy, 0, text, ids, stop, tokenizer, tuple(entropies), verdict)


def told(question: Question, rounds: Sequence[Sequence[Candidate]]) -> list[Event]:
    """The events of a trajectory in which the first candidate of each round is committed."""
    names = tuple(dict.fromkeys(c.policy for round_ in rounds for c in round_))
    events: list[Event] = [TrajectoryStarted(question, 0, names, {})]
    steps = []
    for number, pool in enumerate(rounds):
        events += [CandidateFinished(question.id, number, number, one) for one in pool]
        scores = tuple(1.0 if place == 0 else 0.0 for place in range(len(pool)))
        steps.append(CommittedStep(number, pool[0], 1.0, tuple(pool), scores))
        events.append(StepCommitted(question.id, steps[-1], {}))
    solution = Solution(question, tuple(steps), SolutionStop.EOS, 0)
    return [*events, TrajectoryFinished(solution)]


Rounds = Sequence[Sequence[Candidate]]


def write_run(
    path: Path,
    settings: Sequence[Setting],
    fill: Mapping[str, Sequence[tuple[bool, Rounds]]],
    **fields: Any,
) -> Run:
    """A run's folder: for every method, right or wrong and the rounds of each problem."""
    problems = problem_set(max(map(len, fill.values())))
    with RunWriter(path, problems, settings, "made", {"version": "test"}) as writer:
        for found in settings:
            for problem, (right, rounds) in zip(problems, fill[found.method], strict=False):
                events = told(Question(problem.question, problem.id), rounds)
                writer.write(_record(found, problem, right, **fields), events)
    return Run.read(path)


def _record(found: Setting, problem: Problem, right: bool, **fields: Any) -> Record:
    return Record(
        found.key, problem.id, problem.digest, problem.answer, correct=right, stop="eos", **fields
    )

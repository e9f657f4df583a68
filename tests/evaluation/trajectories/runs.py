"""Runs to look at: one that the tiny trio really made, and ones that are made up."""

from __future__ import annotations

from pathlib import Path

from kvrescue import Rescue
from kvrescue.config import load_config
from kvrescue.evaluation.bill import bills
from kvrescue.evaluation.grading.grade import GradingRule
from kvrescue.evaluation.methods import Method
from kvrescue.evaluation.problems import Problem, ProblemSet
from kvrescue.evaluation.runs.folder import RunWriter
from kvrescue.evaluation.runs.record import Record, Use
from kvrescue.evaluation.runs.settings import Setting, setting_of
from kvrescue.events import Event, TrajectoryFinished, TrajectoryStarted
from kvrescue.parts import Parts
from kvrescue.types import Question, Solution

METHODS: tuple[Method, ...] = ("best_of_n", "kv_rescue")
BUDGET = 16


def tiny_problems(count: int) -> ProblemSet:
    """Shopping bills of the test split."""
    found = enumerate(bills("test", 0, count))
    problems = tuple(Problem(f"bill-{i}", bill.question, str(bill.answer)) for i, bill in found)
    return ProblemSet("tiny", problems, GradingRule.EXACT)


def record_tiny_run(
    path: Path, count: int = 6, n: int = 2, seed: int = 0, max_output_tokens: int = 256
) -> Path:
    """Solve bills with the tiny trio and keep every event."""
    problems = tiny_problems(count)
    config = load_config(
        "tiny",
        [
            f"proposers.base.policy.evictor.budget={BUDGET}",
            f"limits.max_output_tokens={max_output_tokens}",
        ],
    )
    settings = [setting_of(config, method, n, BUDGET, seed) for method in METHODS]
    parts = Parts()
    with RunWriter(path, problems, settings, "made", {"version": "test"}) as writer:
        for setting in settings:
            _solve(writer, setting, problems, parts)
    return path


def _solve(writer: RunWriter, setting: Setting, problems: ProblemSet, parts: Parts) -> None:
    told: dict[str, list[Event]] = {problem.id: [] for problem in problems}

    def keep(event: Event) -> None:
        if isinstance(event, TrajectoryStarted):
            told[event.question.id].append(event)
        elif isinstance(event, TrajectoryFinished):
            told[event.solution.question.id].append(event)
        else:
            told[event.question_id].append(event)

    questions = [Question(problem.question, problem.id) for problem in problems]
    with Rescue.from_config(setting.config, parts=parts, observers=[keep]) as rescue:
        for _ in rescue.solve_many(questions):
            pass
    for problem in problems:
        writer.write(record_of(setting, problem, told[problem.id]), told[problem.id])


def record_of(setting: Setting, problem: Problem, events: list[Event]) -> Record:
    """The record of a trajectory that came to an end."""
    solution: Solution = events[-1].solution  # type: ignore[union-attr]
    pool = [candidate for step in solution.steps for candidate in step.candidates]
    uses = {
        name: Use(
            candidates=use.candidates,
            generated=use.generated,
            aborted=use.aborted,
            aborted_tokens=sum(
                candidate.n_tokens
                for candidate in pool
                if candidate.policy == name and candidate.verdict is not None
            ),
            committed_steps=use.committed_steps,
            committed_tokens=use.committed_tokens,
        )
        for name, use in solution.tokens.items()
    }
    correct = solution.answer == problem.answer
    return Record(
        setting.key,
        problem.id,
        problem.digest,
        problem.answer,
        answer=solution.answer,
        correct=correct,
        rules={"exact": correct},
        stop=solution.stop.value,
        steps=len(solution.steps),
        output_tokens=sum(step.candidate.n_tokens for step in solution.steps),
        sources=tuple(step.candidate.policy for step in solution.steps),
        uses=uses,
        degradations=solution.degradations,
        text=solution.text,
        seconds=0.5,
    )

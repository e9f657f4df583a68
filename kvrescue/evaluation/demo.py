"""The demonstration: what eviction costs, and what KV-Rescue wins back, on problems never seen.

Everything is measured when it is asked for; the only constants are which budgets to show.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from kvrescue.config import RescueConfig
from kvrescue.engines import Engine
from kvrescue.errors import ConfigError
from kvrescue.evaluation.bill import Bill, bill_at
from kvrescue.evaluation.grading import grade_exact
from kvrescue.evaluation.methods import BASE, EVICTED, HELPER, Method, evictor_of
from kvrescue.evaluation.problems import ProblemSet
from kvrescue.evaluation.runs import settings as runs
from kvrescue.evaluation.runs.plan import configs_by_budget
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.runs.work import (
    Solved,
    Task,
    close_tasks,
    solve_task,
    tasks_of,
    tiny_at_once,
)
from kvrescue.evaluation.sources import load_problems
from kvrescue.evaluation.statistics import (
    LEAST_GAP,
    recovery,
    recovery_interval,
    wilson_interval,
)
from kvrescue.evaluation.workers import in_workers
from kvrescue.events import TrajectoryFinished
from kvrescue.faults import whole_number
from kvrescue.sampling import MOST_CANDIDATES
from kvrescue.types import Solution

__all__ = [
    "BUDGETS",
    "COMPARED",
    "LEAST_GAP",
    "DemoPlan",
    "DemoReport",
    "Example",
    "Row",
    "Setting",
    "run_demo",
]

BUDGETS: Final = (16, 64, 128)
"""Budgets of the second table for the preset `tiny`; the first is the headline's."""

COMPARED: Final[tuple[Method, ...]] = ("full_kv", "helper", "best_of_n", "kv_rescue")
"""The methods of every table, in its order."""

_SHOWN: Final[tuple[Method, ...]] = ("best_of_n", "helper", "kv_rescue")
"""The methods of the example."""

_MOST_PROBLEMS: Final = 10_000


@dataclass(frozen=True)
class Row:
    """One method in one setting."""

    method: Method
    n: int
    """Candidates of each proposer in a step."""
    correct: tuple[bool, ...]
    base_tokens: float
    """Tokens that base candidates generated, mean per problem."""
    helper_tokens: float
    aborted: int
    """Base candidates that a detector ended, over all problems."""
    helper_share: float | None
    """Share of the committed steps that the helper wrote; None where it takes no part."""

    @property
    def accuracy(self) -> float:
        return sum(self.correct) / len(self.correct)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the accuracy (Wilson)."""
        return wilson_interval(sum(self.correct), len(self.correct))


@dataclass(frozen=True)
class Setting:
    """The four methods at one budget and one N."""

    budget: int
    window: int
    n: int
    rows: tuple[Row, ...]

    def __getitem__(self, method: Method) -> Row:
        return next(row for row in self.rows if row.method == method)

    @property
    def has_gap(self) -> bool:
        """Whether eviction lost enough to speak of a share of it; else recovery is None."""
        lost = sum(self["full_kv"].correct) - sum(self["best_of_n"].correct)
        return 100 * lost >= LEAST_GAP * len(self.rows[0].correct)  # in whole numbers: no rounding

    @property
    def recovery(self) -> float | None:
        """The part of the loss that was won back."""
        if not self.has_gap:
            return None
        full, evicted, rescued = self["full_kv"], self["best_of_n"], self["kv_rescue"]
        return recovery(full.accuracy, evicted.accuracy, rescued.accuracy)

    @property
    def recovery_interval(self) -> tuple[float, float] | None:
        """95 % of the recovery (bootstrap over problems)."""
        if not self.has_gap:
            return None
        full, evicted, rescued = self["full_kv"], self["best_of_n"], self["kv_rescue"]
        return recovery_interval(full.correct, evicted.correct, rescued.correct)


@dataclass(frozen=True)
class Example:
    """One problem solved by three methods, N = 1."""

    index: int
    bill: Bill
    budget: int
    solutions: dict[Method, Solution]


@dataclass(frozen=True)
class DemoPlan:
    """What to measure.

    Raises:
        ConfigError: a number is out of range, or the configuration does not suit.
    """

    problems: int = 100
    budgets: tuple[int, ...] = BUDGETS
    """The smallest is the headline's; with several there is a second table."""
    n: int = 8
    """Of the headline; N = 1 is measured in any case."""
    seed: int = 0
    """Of problems and samples alike."""
    source: str = "tiny"
    engine: Engine | None = None
    """What the policies run on; None: as configured."""
    overrides: tuple[str, ...] = ()
    configs: dict[int, RescueConfig] = field(init=False)
    """By budget."""

    def __post_init__(self) -> None:
        if not 1 <= self.problems <= _MOST_PROBLEMS:
            raise ConfigError(f"problems = {self.problems}: use 1 to {_MOST_PROBLEMS}")
        whole_number("n", self.n, 1, MOST_CANDIDATES // 2)  # the helper draws 2N, too
        if not self.budgets:
            raise ConfigError("budgets: name at least one")
        for budget in self.budgets:
            if budget < 1:
                raise ConfigError(f"budget = {budget}: at least 1 entry must be kept")
        budgets = tuple(sorted(set(self.budgets)))
        object.__setattr__(self, "budgets", budgets)
        configs = configs_by_budget(self.source, budgets, self.overrides, engine=self.engine)
        object.__setattr__(self, "configs", configs)

    @property
    def budget(self) -> int:
        """The headline's."""
        return self.budgets[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every N of the headline table."""
        return (1,) if self.n == 1 else (1, self.n)


@dataclass(frozen=True)
class DemoReport:
    """What was measured."""

    plan: DemoPlan
    settings: tuple[Setting, ...]
    """At the smallest budget: N = 1, then the N asked for."""
    helper_only: tuple[Row, ...]
    """The helper stepwise with 2N candidates, for the same Ns: as many as KV-Rescue draws."""
    sweep: tuple[Setting, ...]
    """Every budget at N = 1, smallest first."""
    example: Example | None
    """None when no problem is of the kind that is looked for."""
    seconds: float

    @property
    def headline(self) -> Setting:
        return self.settings[-1]


Progress = Callable[[int, int], None]
"""Called with the work done so far and the whole, in candidates."""


Cell: TypeAlias = tuple[Method, int, int | None]
"""Method, N, and the budget where there is an evictor."""


def run_demo(plan: DemoPlan, workers: int = 1, progress: Progress | None = None) -> DemoReport:
    """Measure everything.

    Args:
        plan: what.
        workers: processes that share the work; the numbers do not depend on it. With 1 everything
            runs in this one.
        progress: called as the work goes on.

    Raises:
        WorkerError: a worker process was killed.
        KVRescueError: whatever ends a problem; the others are given up.
    """
    started = time.monotonic()
    drawn = load_problems(f"tiny:{plan.problems}", seed=plan.seed)
    settings = {cell: _setting(plan, cell) for cell in _cells(plan)}
    records, solutions = _solved(plan, drawn, list(settings.values()), workers, progress)
    rows = {cell: _row(cell, records[setting.key]) for cell, setting in settings.items()}

    def shown(budget: int, n: int) -> Setting:
        window = evictor_of(plan.configs[budget]).window
        return Setting(budget, window, n, tuple(rows[_cell(m, n, budget)] for m in COMPARED))

    return DemoReport(
        plan=plan,
        settings=tuple(shown(plan.budget, n) for n in plan.sizes),
        helper_only=tuple(rows["helper", 2 * n, None] for n in plan.sizes),
        sweep=tuple(shown(budget, 1) for budget in plan.budgets),
        example=_example(plan, drawn, records, solutions),
        seconds=time.monotonic() - started,
    )


def _cell(method: Method, n: int, budget: int) -> Cell:
    """What is run for a place of a table: full-KV and helper draw one candidate there."""
    return (method, n, budget) if method in EVICTED else (method, 1, None)


def _cells(plan: DemoPlan) -> list[Cell]:
    places = [(plan.budget, n) for n in plan.sizes] + [(budget, 1) for budget in plan.budgets]
    cells = [_cell(method, n, budget) for budget, n in places for method in COMPARED]
    matched: list[Cell] = [("helper", 2 * n, None) for n in plan.sizes]
    return list(dict.fromkeys((*cells, *matched)))


def _setting(plan: DemoPlan, cell: Cell) -> runs.Setting:
    method, n, budget = cell
    budget = plan.budget if budget is None else budget
    return runs.setting_of(plan.configs[budget], method, n, budget, plan.seed)


def _solved(
    plan: DemoPlan,
    problems: ProblemSet,
    settings: list[runs.Setting],
    workers: int,
    progress: Progress | None,
) -> tuple[dict[str, list[Record]], dict[tuple[str, str], Solution]]:
    """Records of every setting in the order of the problems, and the solutions that are shown."""
    shown = {_setting(plan, _cell(method, 1, plan.budget)).key for method in _SHOWN}
    # Settings that share models side by side, large ones first.
    settings = sorted(settings, key=lambda setting: (setting.budget or 0, -setting.weight))
    weights = {setting.key: setting.weight for setting in settings}
    ids = [problem.id for problem in problems]
    tasks = [
        task
        for setting in settings
        for task in tasks_of(
            setting,
            problems,
            tiny_at_once(setting.n),
            traced=ids if setting.key in shown else (),
            threads=1 if workers > 1 else None,
        )
    ]
    whole, done = len(problems) * sum(weights.values()), 0
    found: dict[str, dict[str, Record]] = {key: {} for key in weights}
    solutions: dict[tuple[str, str], Solution] = {}
    if progress is not None:
        progress(0, whole)
    with contextlib.closing(_here(tasks) if workers == 1 else _beside(tasks, workers)) as stream:
        for solved in stream:
            if solved.error is not None:
                raise solved.error
            record = solved.record
            correct = grade_exact(record.text, record.gold).correct
            found[record.setting][record.problem] = replace(record, correct=correct)
            for event in solved.events[-1:]:
                if isinstance(event, TrajectoryFinished):
                    solutions[record.setting, record.problem] = event.solution
            done += weights[record.setting]
            if progress is not None:
                progress(done, whole)
    return {key: [of[id_] for id_ in ids] for key, of in found.items()}, solutions


def _here(tasks: Sequence[Task]) -> Generator[Solved, None, None]:
    try:
        for task in tasks:
            yield from solve_task(task)
    finally:
        close_tasks()


def _beside(tasks: Sequence[Task], workers: int) -> Generator[Solved, None, None]:
    with contextlib.closing(in_workers(solve_task, tasks, workers)) as messages:
        for found in messages:
            if found.message is not None:
                yield found.message


def _row(cell: Cell, records: Sequence[Record]) -> Row:
    count = len(records)
    base = [record.use(BASE) for record in records]
    helper = [record.use(HELPER) for record in records]
    helper_steps = sum(use.committed_steps for use in helper)
    steps = sum(use.committed_steps for use in base) + helper_steps
    takes_part = cell[0] in ("helper", "kv_rescue") and steps > 0
    return Row(
        method=cell[0],
        n=cell[1],
        correct=tuple(record.correct for record in records),
        base_tokens=sum(use.generated for use in base) / count,
        helper_tokens=sum(use.generated for use in helper) / count,
        aborted=sum(use.aborted for use in base),
        helper_share=helper_steps / steps if takes_part else None,
    )


def _example(
    plan: DemoPlan,
    problems: ProblemSet,
    records: Mapping[str, list[Record]],
    solutions: Mapping[tuple[str, str], Solution],
) -> Example | None:
    """The first problem where evicted base and helper fail alone and KV-Rescue is right."""
    keys = {method: _setting(plan, _cell(method, 1, plan.budget)).key for method in _SHOWN}
    for index, problem in enumerate(problems):
        right = {method: records[key][index].correct for method, key in keys.items()}
        if right["kv_rescue"] and not (right["best_of_n"] or right["helper"]):
            shown = {method: solutions[key, problem.id] for method, key in keys.items()}
            return Example(index, bill_at("test", plan.seed, index), plan.budget, shown)
    return None

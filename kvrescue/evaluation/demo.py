"""The demonstration: what eviction costs, and what KV-Rescue wins back, on problems never seen.

Everything is measured when it is asked for; the only constants are which budgets to show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvrescue.config import RescueConfig, load_config
from kvrescue.engines import Engine
from kvrescue.errors import ConfigError
from kvrescue.evaluation.bill import Bill, bills
from kvrescue.evaluation.jobs import Job, Outcome, run_jobs
from kvrescue.evaluation.methods import Method, evictor_of
from kvrescue.evaluation.statistics import (
    LEAST_GAP,
    recovery,
    recovery_interval,
    wilson_interval,
)
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

_BUDGET_PATH: Final = "proposers.base.policy.evictor.budget"
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
        if self.n < 1:
            raise ConfigError(f"n = {self.n}: a proposer draws at least one candidate")
        if not self.budgets:
            raise ConfigError("budgets: name at least one")
        for budget in self.budgets:
            if budget < 1:
                raise ConfigError(f"budget = {budget}: at least 1 entry must be kept")
        budgets = tuple(sorted(set(self.budgets)))
        object.__setattr__(self, "budgets", budgets)
        configs = {
            budget: load_config(
                self.source,
                (*self.overrides, f"{_BUDGET_PATH}={budget}"),
                engine=self.engine,
            )
            for budget in budgets
        }
        for config in configs.values():
            evictor_of(config)
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


@dataclass(frozen=True)
class _Run:
    method: Method
    n: int
    budget: int | None
    """None: the method has no evictor."""


def run_demo(plan: DemoPlan, workers: int = 1, progress: Progress | None = None) -> DemoReport:
    """Measure everything.

    Args:
        plan: what.
        workers: processes that share the work; the numbers do not depend on it.
        progress: called as the work goes on.
    """
    started = time.monotonic()
    problems = tuple(enumerate(bills("test", plan.seed, plan.problems)))
    runs = _runs(plan)
    jobs = [_job(plan, run, problems) for run in runs]
    whole = sum(job.weight for job in jobs)
    done = 0

    def told(piece: Job) -> None:
        nonlocal done
        done += piece.weight
        if progress is not None:
            progress(done, whole)

    if progress is not None:
        progress(0, whole)
    outcomes = dict(zip(runs, run_jobs(jobs, workers, told), strict=True))
    rows = {run: _row(run, found) for run, found in outcomes.items()}

    def setting(budget: int, n: int) -> Setting:
        window = evictor_of(plan.configs[budget]).window
        chosen = tuple(rows[_run(method, n, budget)] for method in COMPARED)
        return Setting(budget, window, n, chosen)

    return DemoReport(
        plan=plan,
        settings=tuple(setting(plan.budget, n) for n in plan.sizes),
        helper_only=tuple(rows[_Run("helper", 2 * n, None)] for n in plan.sizes),
        sweep=tuple(setting(budget, 1) for budget in plan.budgets),
        example=_example(plan, problems, outcomes),
        seconds=time.monotonic() - started,
    )


def _run(method: Method, n: int, budget: int) -> _Run:
    """The run behind a cell: full-KV and helper draw one candidate and know no budget."""
    if method in ("full_kv", "helper"):
        return _Run(method, 1, None)
    return _Run(method, n, budget)


def _runs(plan: DemoPlan) -> list[_Run]:
    cells = [(plan.budget, n) for n in plan.sizes] + [(budget, 1) for budget in plan.budgets]
    runs = [_run(method, n, budget) for budget, n in cells for method in COMPARED]
    runs += [_Run("helper", 2 * n, None) for n in plan.sizes]
    return list(dict.fromkeys(runs))


def _job(plan: DemoPlan, run: _Run, problems: tuple[tuple[int, Bill], ...]) -> Job:
    budget = plan.budget if run.budget is None else run.budget
    shown = run.n == 1 and budget == plan.budget and run.method != "full_kv"
    data = plan.configs[budget].model_dump(mode="json")
    return Job(data, run.method, run.n, plan.seed, problems, keep_solutions=shown)


def _row(run: _Run, outcomes: Sequence[Outcome]) -> Row:
    count = len(outcomes)
    base_steps = sum(outcome.base.committed_steps for outcome in outcomes)
    helper_steps = sum(outcome.helper.committed_steps for outcome in outcomes)
    steps = base_steps + helper_steps
    takes_part = run.method in ("helper", "kv_rescue") and steps > 0
    return Row(
        method=run.method,
        n=run.n,
        correct=tuple(outcome.correct for outcome in outcomes),
        base_tokens=sum(outcome.base.generated for outcome in outcomes) / count,
        helper_tokens=sum(outcome.helper.generated for outcome in outcomes) / count,
        aborted=sum(outcome.base.aborted for outcome in outcomes),
        helper_share=helper_steps / steps if takes_part else None,
    )


def _example(
    plan: DemoPlan,
    problems: Sequence[tuple[int, Bill]],
    outcomes: dict[_Run, list[Outcome]],
) -> Example | None:
    """The first problem where evicted base and helper fail alone and KV-Rescue is right."""
    methods: tuple[Method, ...] = ("best_of_n", "helper", "kv_rescue")
    found = {method: outcomes[_run(method, 1, plan.budget)] for method in methods}
    for index, bill in problems:
        here = {method: found[method][index] for method in methods}
        if here["kv_rescue"].correct and not (here["best_of_n"].correct or here["helper"].correct):
            solutions = {
                method: outcome.solution
                for method, outcome in here.items()
                if outcome.solution is not None
            }
            return Example(index, bill, plan.budget, solutions)
    return None

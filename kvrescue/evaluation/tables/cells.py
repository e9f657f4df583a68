"""Cells: the records of one method at one budget and N, over its seeds, and numbers made of them.

An accuracy is the mean over seeds of each seed's share of right answers, with the standard
deviation over seeds as the paper gives it. Its interval is Wilson's, the seeds of one problem
counted as one cluster (`clustered_interval`): it answers "other problems of this kind", keeps a
width at 0 and 100 %, and needs no random numbers. Means, differences and quotients have no such
interval; theirs is a bootstrap over problems.

Rows in which a scorer or a helper failed (degraded) are left out, as in the paper's Table 5;
`Cells.of(run, degraded=True)` keeps them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvrescue.config import RescueConfig
from kvrescue.errors import UnknownNameError, nearest
from kvrescue.evaluation.methods import BASE, HELPER, METHODS, Method
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.record import Record
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.statistics import bootstrap_interval, clustered_interval
from kvrescue.evaluation.tables.table import Estimate

__all__ = ["LABELS", "Cell", "Cells", "Measure", "Sums", "correct", "generated", "paired"]

LABELS: Mapping[Method, str] = {
    "full_kv": "full-KV",
    "helper": "helper",
    "best_of_n": "evicted best-of-N",
    "interleaved": "+ interleaving",
    "kv_rescue": "KV-Rescue",
}
"""What tables and figures call the methods."""

Measure: TypeAlias = Callable[[Record], float]
Sums: TypeAlias = Sequence[float]
Key: TypeAlias = tuple[Method, int | None, int]
"""Method, budget (None: nothing is evicted) and N."""


def correct(record: Record) -> float:
    """1 for a right answer."""
    return float(record.correct)


def generated(proposer: str) -> Measure:
    """Tokens that a proposer's candidates generated."""
    return lambda record: record.use(proposer).generated


@dataclass(frozen=True)
class Cell:
    """One method at one budget and N."""

    method: Method
    budget: int | None
    n: int
    """Candidates of each proposer in a step."""
    config: RescueConfig
    """Of the first seed."""
    problems: int
    """Of the whole set."""
    seeds: Mapping[int, tuple[Record, ...]]
    """Records that count, by seed; empty where none is there yet."""
    left_out: int = 0
    """Degraded rows that do not count."""

    @property
    def rows(self) -> tuple[Record, ...]:
        """Of all seeds."""
        return tuple(record for records in self.seeds.values() for record in records)

    @property
    def planned(self) -> int:
        """Rows of the finished cell, degraded ones included."""
        return self.problems * len(self.seeds)

    @property
    def has_helper(self) -> bool:
        return HELPER in self.config.proposers

    @property
    def has_base(self) -> bool:
        return BASE in self.config.proposers

    def values(self, measure: Measure) -> dict[str, float]:
        """A number per problem: the mean over the seeds that solved it."""
        found: dict[str, list[float]] = {}
        for record in self.rows:
            found.setdefault(record.problem, []).append(measure(record))
        return {problem: statistics.fmean(found[problem]) for problem in sorted(found)}

    @property
    def accuracy(self) -> Estimate | None:
        """None without records."""
        return self.share(correct)

    def share(self, measure: Measure) -> Estimate | None:
        """Share of the rows for which `measure` is 1, every seed counting alike."""
        counted = [records for _, records in sorted(self.seeds.items()) if records]
        if not counted:
            return None
        shares = [statistics.fmean(map(measure, records)) for records in counted]
        spread = statistics.stdev(shares) if len(shares) > 1 else None
        clusters: dict[str, list[float]] = {}
        for record in self.rows:
            clusters.setdefault(record.problem, []).append(measure(record))
        value = statistics.fmean(shares)
        low, high = clustered_interval((int(sum(c)), len(c)) for c in clusters.values())
        # Seeds of an unfinished cell may have other problems; the interval still holds the share.
        return Estimate(value, min(low, value), max(high, value), spread)

    def mean(self, measure: Measure) -> Estimate | None:
        """Mean per problem."""
        return paired([(self, measure)], lambda sums: sums[0])

    def quotient(self, above: Measure, below: Measure) -> Estimate | None:
        """Sum of one measure over the sum of another; None where that is zero."""
        return paired(
            [(self, above), (self, below)], lambda sums: sums[0] / sums[1] if sums[1] else None
        )


def paired(
    columns: Sequence[tuple[Cell | None, Measure]],
    statistic: Callable[[Sums], float | None],
) -> Estimate | None:
    """A function of means over the problems that all cells have solved, with its interval.

    Args:
        columns: cells with what to measure.
        statistic: takes their means per problem, in this order.

    Returns:
        None when a cell is missing, no problem is common to all, or the function has no value.
    """
    tables = [cell.values(measure) for cell, measure in columns if cell is not None]
    if len(tables) < len(columns) or not tables:
        return None
    common = sorted(set.intersection(*(set(table) for table in tables)))
    if not common:
        return None
    rows = [[table[problem] for table in tables] for problem in common]

    def of_sums(sums: Sums) -> float | None:
        return statistic([value / len(rows) for value in sums])

    value = of_sums([sum(column) for column in zip(*rows, strict=True)])
    if value is None:
        return None
    interval = bootstrap_interval(rows, of_sums)
    if interval is not None and interval[0] == interval[1]:
        interval = None  # all problems alike: a bootstrap then knows nothing of the error
    if interval is not None:  # of skewed functions of few problems, a percentile may miss the value
        interval = min(interval[0], value), max(interval[1], value)
    return Estimate.within(value, interval)


@dataclass(frozen=True)
class Cells:
    """The cells of one composition of a run: what may be compared with one another."""

    run: Run
    composition: str
    """Empty for a run without any."""
    by_key: Mapping[Key, Cell]

    @classmethod
    def of(cls, run: Run, composition: str | None = None, *, degraded: bool = False) -> Cells:
        """Group a run's records.

        Args:
            run: finished or not.
            composition: of `run.compositions`; None: the one that was asked for last.
            degraded: keep degraded rows.

        Raises:
            UnknownNameError: the run has no such composition.
        """
        if composition is None:
            composition = next(reversed(list(run.compositions)), "")
        elif composition not in run.compositions:
            close = nearest(composition, run.compositions)
            raise UnknownNameError(f"the run has no composition {composition!r}{close}")
        groups: dict[Key, list[Setting]] = {}
        for setting in _settings(run, composition):
            groups.setdefault((setting.method, setting.budget, setting.n), []).append(setting)
        cells = {key: _cell(run, settings, degraded) for key, settings in groups.items()}
        return cls(run, composition, cells)

    @property
    def settings(self) -> list[Setting]:
        """Of the composition, in the order of the plan."""
        return _settings(self.run, self.composition)

    @property
    def others(self) -> dict[str, tuple[str, ...]]:
        """Keys of the settings of every other composition, which these cells leave out."""
        compositions = self.run.compositions
        return {name: keys for name, keys in compositions.items() if name != self.composition}

    def __iter__(self) -> Iterator[Cell]:
        """By N, then as the paper lists methods, then from the smallest budget."""
        return iter(
            sorted(
                self.by_key.values(),
                key=lambda cell: (cell.n, METHODS.index(cell.method), cell.budget or 0),
            )
        )

    def get(self, method: Method, budget: int | None, n: int) -> Cell | None:
        """A cell, when the run has it and something of it is recorded."""
        cell = self.by_key.get((method, budget, n))
        return cell if cell is not None and cell.rows else None

    def reference(self, method: Method, n: int) -> Cell | None:
        """`full_kv` or `helper` with N candidates, or else with the next smaller number."""
        smaller = (cell.n for cell in self if cell.method == method and cell.n <= n and cell.rows)
        return self.get(method, None, max(smaller, default=0))

    @property
    def budgets(self) -> list[int]:
        """From the smallest."""
        return sorted({cell.budget for cell in self if cell.budget is not None})

    @property
    def ns(self) -> list[int]:
        """Every N of KV-Rescue; of any method where KV-Rescue was not run."""
        rescue = {cell.n for cell in self if cell.method == "kv_rescue"}
        return sorted(rescue or {cell.n for cell in self})


def _settings(run: Run, composition: str) -> list[Setting]:
    keys = set(run.compositions.get(composition, ()))
    return [setting for key, setting in run.settings.items() if key in keys]


def _cell(run: Run, settings: Sequence[Setting], degraded: bool) -> Cell:
    first = settings[0]
    seeds: dict[int, tuple[Record, ...]] = {}
    left_out = 0
    for setting in sorted(settings, key=lambda s: s.seed):
        records = run.of(setting.key)
        kept = [record for record in records if degraded or not record.degraded]
        left_out += len(records) - len(kept)
        seeds[setting.seed] = tuple(kept)
    return Cell(
        first.method, first.budget, first.n, first.config, len(run.problems), seeds, left_out
    )

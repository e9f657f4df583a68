"""Calibrate: from samples to thresholds, budget by budget.

For each budget the problems are split into two halves: one chooses the thresholds, the other
measures them. So a rate is never one that its threshold was chosen to have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import kvrescue
from kvrescue.calibration.bounds import Rate
from kvrescue.calibration.choosing import Value, choose, halves
from kvrescue.calibration.result import AtBudget, Calibration, Counts, DetectorThreshold, Rates
from kvrescue.calibration.samples import (
    DEGENERATE,
    HEALTHY,
    Degenerate,
    Group,
    Healthy,
    Sample,
    Samples,
)
from kvrescue.detectors.base import Cutoff, Detector
from kvrescue.errors import CalibrationError, ConfigError, UnknownNameError, nearest
from kvrescue.faults import whole_number

__all__ = ["MOST_FALSE_ABORTS", "calibrate", "check_options"]

MOST_FALSE_ABORTS: Final = 0.5
"""The largest share of false aborts that may be asked for."""
_OTHERS: Final[tuple[Group, ...]] = ("full-KV", "helper")
_FIRES: Final = {
    (True, False): "above",
    (True, True): "from",
    (False, False): "below",
    (False, True): "up to",
}


def calibrate(
    samples: Samples,
    *,
    false_aborts: float = 0.01,
    healthy: Healthy = "right",
    degenerate: Degenerate = "either",
    seed: int = 0,
    budgets: Collection[int] | None = None,
) -> Calibration:
    """Propose a threshold for every detector at every budget.

    Args:
        samples: of `read_samples`.
        false_aborts: what the exact 95 % upper bound on the share of healthy candidates that a
            detector aborts may be at most, in (0, 0.5].
        healthy: which candidates are healthy, see `Sample.is_healthy`.
        degenerate: which are degenerate, see `Sample.is_degenerate`.
        seed: of the halves.
        budgets: which to calibrate (default: all).

    Raises:
        ConfigError: an argument makes no sense.
        CalibrationError: no threshold can be proposed, for want of data for example.
    """
    check_options(false_aborts, healthy, degenerate, seed)
    wanted = samples.budgets if budgets is None else sorted(set(budgets))
    for budget in wanted:
        if budget not in samples.budgets:
            known = ", ".join(map(str, samples.budgets))
            raise CalibrationError(f"budget {budget}: the runs' traces have only {known}")
    found = []
    for budget in wanted:
        here = [s for s in samples.found if s.budget in (None, budget)]
        split = _Split.of(here, healthy, degenerate, seed)
        found.append(_at_budget(samples, budget, split, false_aborts))
    if all(t.proposed is None for at in found for t in at.detectors):
        reasons = [f"B {at.budget}, {t.name}: {t.why_not}" for at in found for t in at.detectors]
        raise CalibrationError("\n".join(["no threshold can be proposed", *reasons]))
    return Calibration(
        version=kvrescue.__version__,
        date=datetime.now(UTC).date().isoformat(),
        runs=samples.runs,
        problem_sets=samples.problem_sets,
        trajectories=samples.trajectories,
        made_for=samples.facts,
        target=false_aborts,
        healthy=healthy,
        degenerate=degenerate,
        seed=seed,
        damaged=tuple(samples.damaged),
        budgets=tuple(found),
    )


def check_options(false_aborts: float, healthy: str, degenerate: str, seed: int) -> None:
    """Raise what `calibrate` would, before there are samples.

    Raises:
        ConfigError: an argument makes no sense.
    """
    if isinstance(false_aborts, bool) or not 0 < false_aborts <= MOST_FALSE_ABORTS:
        raise ConfigError(
            f"false-aborts = {false_aborts!r}: expected a share greater than 0 and of at most "
            f"{MOST_FALSE_ABORTS:g}"
        )
    _known("healthy", healthy, HEALTHY)
    _known("degenerate", degenerate, DEGENERATE)
    whole_number("seed", seed)


def _known(name: str, value: str, names: Sequence[str]) -> None:
    if value not in names:
        raise UnknownNameError(f"unknown {name} {value!r}{nearest(str(value), names)}")


@dataclass(frozen=True)
class _Split:
    """The samples of a budget by what they are and which half their problem is in."""

    evicted: tuple[Sample, ...]
    others: Mapping[Group, tuple[Sample, ...]]
    choosing: tuple[tuple[Sample, ...], tuple[Sample, ...]]
    """Healthy and degenerate ones of the half that chooses."""
    measuring: tuple[tuple[Sample, ...], tuple[Sample, ...]]
    """The same of the other half."""

    @classmethod
    def of(
        cls, found: Sequence[Sample], healthy: Healthy, degenerate: Degenerate, seed: int
    ) -> _Split:
        good = [sample for sample in found if sample.is_healthy(healthy)]
        bad = [sample for sample in found if sample.is_degenerate(degenerate)]
        chosen = halves({s.problem for s in good}, {s.problem for s in bad}, seed)

        def half(first: bool) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
            return (
                tuple(s for s in good if (s.problem in chosen) == first),
                tuple(s for s in bad if (s.problem in chosen) == first),
            )

        return cls(
            tuple(sample for sample in found if sample.group == "evicted"),
            {group: tuple(s for s in found if s.group == group) for group in _OTHERS},
            half(True),
            half(False),
        )

    @property
    def counts(self) -> Counts:
        good = (*self.choosing[0], *self.measuring[0])
        bad = (*self.choosing[1], *self.measuring[1])
        return Counts(
            candidates=len(self.evicted),
            healthy=len(good),
            healthy_problems=len({sample.problem for sample in good}),
            degenerate=len(bad),
            degenerate_problems=len({sample.problem for sample in bad}),
        )


def _at_budget(samples: Samples, budget: int, split: _Split, target: float) -> AtBudget:
    detectors = samples.detectors
    thresholds = [
        _threshold(detector, samples.places[column], column, split, target)
        for column, detector in enumerate(detectors)
    ]
    return AtBudget(
        budget=budget,
        counts=split.counts,
        detectors=tuple(thresholds),
        together=_together(
            detectors,
            [t.present if t.proposed is None else t.proposed for t in thresholds],
            *split.measuring,
        ),
        together_now=_together(detectors, [t.present for t in thresholds], *split.measuring),
    )


def _threshold(
    detector: Detector, place: int, column: int, split: _Split, target: float
) -> DetectorThreshold:
    cutoff = detector.known_cutoff
    present = detector.threshold_now
    proposed, why_not = None, None
    good, bad = (_values(samples, column) for samples in split.choosing)
    try:
        proposed = choose(detector, good, bad, target)
    except CalibrationError as error:
        why_not = str(error)
    options = detector.model_dump(mode="json")
    del options[cutoff.option]
    options.pop("kind", None)

    def rates(threshold: float, half: tuple[tuple[Sample, ...], tuple[Sample, ...]]) -> Rates:
        return _rates(cutoff, threshold, *(_values(samples, column) for samples in half))

    return DetectorThreshold(
        kind=detector.kind,
        place=place,
        option=cutoff.option,
        unit=cutoff.unit,
        fires=_FIRES[cutoff.above, cutoff.inclusive],
        options=options,
        present=present,
        proposed=proposed,
        why_not=why_not,
        chosen_on=None if proposed is None else rates(proposed, split.choosing),
        measured=None if proposed is None else rates(proposed, split.measuring),
        now=rates(present, split.measuring),
        others={
            group: _false_aborts(
                cutoff, present if proposed is None else proposed, _values(samples, column)
            )
            for group, samples in split.others.items()
            if samples
        },
    )


def _values(samples: Iterable[Sample], column: int) -> list[Value]:
    return [(sample.problem, sample.values[column]) for sample in samples]


def _rates(
    cutoff: Cutoff, threshold: float, healthy: Sequence[Value], degenerate: Sequence[Value]
) -> Rates:
    caught = Rate.of((p, v is not None and cutoff.beyond(v, threshold)) for p, v in degenerate)
    return Rates(false_aborts=_false_aborts(cutoff, threshold, healthy), caught=caught)


def _false_aborts(cutoff: Cutoff, threshold: float, values: Iterable[Value]) -> Rate:
    return Rate.of((p, cutoff.beyond(v, threshold)) for p, v in values if v is not None)


def _together(
    detectors: Sequence[Detector],
    thresholds: Sequence[float],
    healthy: Sequence[Sample],
    degenerate: Sequence[Sample],
) -> Rates:
    """A candidate is aborted by whichever detector; too short is one that none can judge."""
    cutoffs = [detector.known_cutoff for detector in detectors]

    def aborted(sample: Sample) -> bool:
        told = zip(cutoffs, sample.values, thresholds, strict=True)
        return any(v is not None and cutoff.beyond(v, threshold) for cutoff, v, threshold in told)

    judged = [sample for sample in healthy if any(v is not None for v in sample.values)]
    return Rates(
        false_aborts=Rate.of((sample.problem, aborted(sample)) for sample in judged),
        caught=Rate.of((sample.problem, aborted(sample)) for sample in degenerate),
    )

"""Apply a calibration to a configuration, if it was made for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvrescue.calibration.result import AtBudget, Calibration, DetectorThreshold
from kvrescue.calibration.samples import facts_of
from kvrescue.config import RescueConfig
from kvrescue.detectors.base import Detector
from kvrescue.errors import CalibrationError
from kvrescue.evaluation.methods import BASE, evictor_of, require_proposers
from kvrescue.types import Candidate

__all__ = ["apply", "check_tokenizer", "remarks"]

_DECISIVE: Final = ("base.", "evictor", "sampling")
"""Beginnings of the names of what the measured values are a property of."""


def apply(config: RescueConfig, calibration: Calibration) -> RescueConfig:
    """The configuration with the calibrated thresholds of its budget.

    Detectors without a proposed threshold stay as they are.

    Raises:
        CalibrationError: it was made for another model, prompt, evictor, budget or sampling, or for
            detectors with other options.
        ConfigError: the configuration has no evicted base.
    """
    require_proposers(config)
    found = calibration.at(evictor_of(config).budget)
    different = [
        f"{name} = {mine!r}, calibrated with {theirs!r}"
        for name, mine, theirs in _differences(config, calibration)
        if name.startswith(_DECISIVE)
    ]
    if different:
        raise CalibrationError(
            "the calibration was made for something else:\n"
            + "\n".join(different)
            + "\ncalibrate for this, or set the thresholds by hand"
        )
    base = config.proposers[BASE]
    detectors = list(base.detectors)
    for threshold in found.detectors:
        if threshold.proposed is not None:
            detectors[threshold.place] = _changed(detectors, threshold)
    section = base.model_copy(update={"detectors": tuple(detectors)})
    return config.model_copy(update={"proposers": {**config.proposers, BASE: section}})


def remarks(config: RescueConfig, calibration: Calibration) -> list[str]:
    """What differs from the calibration without making it meaningless, a line each: helper, scorer
    and limits decide which contexts the base writes in, not how it writes in them; and detectors
    that keep their thresholds."""
    lines = [
        f"calibrated with another {name}: {theirs!r}, here {mine!r}"
        for name, mine, theirs in _differences(config, calibration)
        if not name.startswith(_DECISIVE)
    ]
    lines += [
        f"{threshold.name} stays at {threshold.present:g}: {threshold.why_not}"
        for threshold in _at(config, calibration).detectors
        if threshold.proposed is None
    ]
    return lines


def check_tokenizer(calibration: Calibration, candidate: Candidate) -> None:
    """Refuse a base whose tokenizer is not the calibrated one, whatever its model's name says.

    Args:
        calibration: that was applied.
        candidate: any; those of others than the base are not looked at.

    Raises:
        CalibrationError: they differ.
    """
    known, fingerprint = calibration.made_for.get("tokenizer"), candidate.tokenizer
    if candidate.policy == BASE and known and fingerprint != known:
        raise CalibrationError(
            f"the base's tokenizer is {fingerprint}, the calibration was made with {known}: the "
            "model of that name is another one now; calibrate again"
        )


def _at(config: RescueConfig, calibration: Calibration) -> AtBudget:
    return calibration.at(evictor_of(config).budget)


def _differences(config: RescueConfig, calibration: Calibration) -> list[tuple[str, Any, Any]]:
    """Names of facts that both know, with the two values."""
    mine: Mapping[str, Any] = facts_of(config)
    theirs = calibration.made_for
    return [
        (name, mine[name], theirs[name])
        for name in mine
        if name in theirs and mine[name] != theirs[name]
    ]


def _changed(detectors: list[Detector], threshold: DetectorThreshold) -> Detector:
    place = threshold.place
    detector = detectors[place] if place < len(detectors) else None
    if detector is None or detector.kind != threshold.kind or threshold.proposed is None:
        kinds = [detector.kind for detector in detectors]
        raise CalibrationError(
            f"the calibration is of {threshold.kind!r} as detector {place} of the base, which has "
            f"{kinds}: calibrate these"
        )
    options = detector.model_dump(mode="json")
    other = {
        name: (options.get(name), value)
        for name, value in threshold.options.items()
        if options.get(name) != value
    }
    if other:
        told = "; ".join(f"{n} = {m!r}, calibrated with {t!r}" for n, (m, t) in other.items())
        raise CalibrationError(
            f"detector {threshold.kind!r}: {told}. A threshold holds for its window only: "
            "calibrate for these options"
        )
    return detector.at(threshold.proposed)

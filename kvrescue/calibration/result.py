"""Calibrations: proposed thresholds with their rates and what they were made from, as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from kvrescue.calibration.bounds import LEVEL, Rate
from kvrescue.calibration.samples import Degenerate, Healthy
from kvrescue.errors import CalibrationError
from kvrescue.faults import line
from kvrescue.options import Options

__all__ = ["AtBudget", "Calibration", "Counts", "DetectorThreshold", "Rates"]

SCHEMA: Final = 1


class Rates(Options):
    """What a threshold does to the candidates of some problems."""

    false_aborts: Rate
    """Of the healthy candidates that are long enough to be judged."""
    caught: Rate
    """Of all degenerate candidates; those that are too short are not caught."""


class Counts(Options):
    """Candidates of the evicted base at one budget, and their problems."""

    candidates: int
    """Drawn without detectors."""
    healthy: int
    """Candidates."""
    healthy_problems: int
    """Problems that they are of."""
    degenerate: int
    """Candidates."""
    degenerate_problems: int
    """Problems that they are of."""


class DetectorThreshold(Options):
    """One detector at one budget."""

    kind: str
    """Of the detector."""
    place: int
    """Among the base's detectors."""
    option: str
    """The one that is its threshold."""
    unit: str
    """Of the threshold."""
    fires: Literal["above", "from", "below", "up to"]
    """At which values, seen from the threshold."""
    options: dict[str, Any]
    """The other ones: what a window is, say. The threshold holds for these only."""
    present: int | float
    """As configured."""
    proposed: int | float | None
    """Threshold; None where there is none to propose."""
    why_not: str | None = None
    """Why no threshold is proposed."""
    chosen_on: Rates | None = None
    """The proposed one's rates on the half of the problems that chose it: too good."""
    measured: Rates | None = None
    """The proposed one's rates on the other half."""
    now: Rates
    """The present threshold's rates on that other half."""
    others: dict[str, Rate]
    """Share of the candidates of `full-KV` and `helper` that the proposed threshold would abort
    (the present one where none is proposed): all that are long enough, of all problems."""

    @property
    def name(self) -> str:
        """Detector and option, as `--set` writes them."""
        return f"{self.kind}.{self.option}"


class AtBudget(Options):
    """What was found at one budget."""

    budget: int
    """Of the evictor."""
    counts: Counts
    """What it was made from."""
    detectors: tuple[DetectorThreshold, ...]
    """In the order of the configuration."""
    together: Rates
    """All detectors at once on the half that measures, each at its proposed threshold, or at its
    present one where none is proposed."""
    together_now: Rates
    """The same with the present thresholds."""

    def overrides(self) -> list[str]:
        """Lines for `--set`."""
        kinds = [found.kind for found in self.detectors]
        lines = []
        for found in self.detectors:
            if found.proposed is not None:
                entry = found.kind if kinds.count(found.kind) == 1 else str(found.place)
                path = f"proposers.base.detectors.{entry}.{found.option}"
                lines.append(f"{path}={found.proposed!r}")
        return lines


class Calibration(Options):
    """Thresholds of the base's detectors, by budget."""

    schema_version: int = SCHEMA
    """Of the file."""
    version: str
    """Of kvrescue."""
    date: str
    """When it was made."""
    runs: tuple[str, ...]
    """Names of the folders that it was made from."""
    problem_sets: tuple[str, ...]
    """What was solved."""
    trajectories: int
    """Traced ones that were read."""
    made_for: dict[str, Any]
    """What the candidates were drawn with: models, evictor without its budget, sampling, limits,
    and the base's `tokenizer` by its fingerprint."""
    target: float
    """The bound of the false aborts' share that was asked for."""
    level: float = LEVEL
    """Of the bounds."""
    healthy: Healthy
    """Which definition was chosen."""
    degenerate: Degenerate
    """Which definition was chosen."""
    seed: int
    """Of the halves."""
    damaged: tuple[str, ...] = ()
    """Traces that could not be read and are left out."""
    budgets: tuple[AtBudget, ...]
    """From the smallest."""

    def at(self, budget: int) -> AtBudget:
        """What was found at a budget.

        Raises:
            CalibrationError: that budget was not calibrated.
        """
        for found in self.budgets:
            if found.budget == budget:
                return found
        known = ", ".join(str(found.budget) for found in self.budgets)
        raise CalibrationError(
            f"budget {budget} was not calibrated, only {known}: a tighter cache degenerates in "
            f"another way; calibrate it from a run at budget {budget}"
        )

    def data(self) -> dict[str, Any]:
        """As plain JSON data."""
        data = self.model_dump(mode="json")
        return {"schema": data.pop("schema_version"), **data}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Calibration:
        """Read back what `data` gave.

        Raises:
            CalibrationError: it is no calibration of this schema.
        """
        fields = dict(data)
        schema = fields.pop("schema", None)
        if schema != SCHEMA:
            raise CalibrationError(f"no calibration of schema {SCHEMA}: its schema is {schema!r}")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            faults = "; ".join(line(fault) for fault in error.errors(include_url=False))
            raise CalibrationError(f"not a calibration: {faults}") from None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read a `calibration.json`.

        Raises:
            CalibrationError: the file cannot be read, or is none.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise CalibrationError(f"{str(path)!r} cannot be read: {reason}") from error
        except ValueError as error:
            raise CalibrationError(f"{str(path)!r} is no calibration: {error}") from error
        if not isinstance(data, dict):
            raise CalibrationError(f"{str(path)!r} is no calibration")
        try:
            return cls.from_data(data)
        except CalibrationError as error:
            raise CalibrationError(f"{str(path)!r}: {error}") from None

"""Calibration: thresholds of detectors from recorded traces with known outcomes.

    from kvrescue import calibration
    from kvrescue.evaluation.runs.folder import Run

    runs = [Run.read("runs/tiny")]
    samples = calibration.read_samples(runs, calibration.recorded_config(runs))
    found = calibration.calibrate(samples, false_aborts=0.01)
    print(found.at(16).overrides())

Needs the extra `eval` (scipy; matplotlib for the figure). See docs/calibration.md.
"""

from kvrescue.calibration.applying import apply, check_tokenizer, remarks
from kvrescue.calibration.bounds import Rate, least_trials, lower_bound, upper_bound
from kvrescue.calibration.calibrate import calibrate, check_options
from kvrescue.calibration.result import (
    AtBudget,
    Calibration,
    Counts,
    DetectorThreshold,
    Rates,
)
from kvrescue.calibration.samples import Sample, Samples, read_samples, recorded_config
from kvrescue.calibration.writing import Files, provenance, snippet, write_calibration

__all__ = [
    "AtBudget",
    "Calibration",
    "Counts",
    "DetectorThreshold",
    "Files",
    "Rate",
    "Rates",
    "Sample",
    "Samples",
    "apply",
    "calibrate",
    "check_options",
    "check_tokenizer",
    "least_trials",
    "lower_bound",
    "provenance",
    "read_samples",
    "recorded_config",
    "remarks",
    "snippet",
    "upper_bound",
    "write_calibration",
]

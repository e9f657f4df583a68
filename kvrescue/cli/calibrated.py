"""`--calibration`: thresholds from a file, for the configurations that they were made for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from kvrescue.cli.console import messages

if TYPE_CHECKING:
    from kvrescue.calibration import Calibration
    from kvrescue.config import RescueConfig

__all__ = ["CalibrationFile", "calibrated"]

CalibrationFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="FILE.json",
        help="Thresholds of `kvrescue calibrate` for this model, evictor and budget; after --set.",
    ),
]


def calibrated(config: RescueConfig, path: Path) -> tuple[RescueConfig, Calibration]:
    """The configuration with a file's thresholds; what is worth knowing goes to standard error.

    Raises:
        CalibrationError: the file is none, or was made for something else.
    """
    from kvrescue.calibration import Calibration, apply, remarks

    found = Calibration.read(path)
    changed = apply(config, found)
    for line in remarks(config, found):
        messages().print(f"calibration: {line}", markup=False, soft_wrap=True)
    return changed, found

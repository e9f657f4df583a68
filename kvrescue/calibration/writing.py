"""What a calibration leaves in a folder: JSON, YAML to paste, and Figure 3 with its thresholds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from kvrescue.calibration.result import AtBudget, Calibration, DetectorThreshold
from kvrescue.calibration.samples import Samples
from kvrescue.errors import CalibrationError
from kvrescue.evaluation.files import write_whole
from kvrescue.evaluation.tables.drawing import (
    BLUE,
    RC,
    legend,
    panels_for,
    require_matplotlib,
    save,
)
from kvrescue.evaluation.tables.histograms import Mark, histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Files", "provenance", "snippet", "write_calibration"]

_MEASURED: Final = {
    "entropy": "Largest mean entropy\nover {window} tokens (nats)",
    "gzip": "Least gzip ratio over\n{window_chars} characters (bytes/bytes)",
    "ngram": "Longest span of a\nrepeated pattern (tokens)",
}


@dataclass(frozen=True)
class Files:
    """What was written."""

    calibration: Path
    detectors: tuple[Path, ...]
    """A YAML file for each budget."""
    figures: tuple[Path, ...]


def write_calibration(found: Calibration, samples: Samples, folder: Path) -> Files:
    """Write all files of a calibration; older ones of the same budgets are replaced.

    Args:
        found: of `calibrate`.
        samples: that it was made from; the figure shows them.
        folder: where to; it is made when it is missing.

    Raises:
        CalibrationError: the folder cannot be used.
        DependencyError: matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib

    try:
        folder.mkdir(parents=True, exist_ok=True)
        detectors: list[Path] = []
        figures: list[Path] = []
        with matplotlib.rc_context(RC):
            for at in found.budgets:
                file = folder / f"detectors-b{at.budget}.yaml"
                write_whole(file, snippet(found, at).encode())
                detectors.append(file)
                figure = draw(at, samples)
                if figure is not None:
                    figures += save(figure, folder, f"figure_3_b{at.budget}")
        file = folder / "calibration.json"
        write_whole(file, (json.dumps(found.data(), indent=1) + "\n").encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise CalibrationError(f"the folder {str(folder)!r} cannot be used: {reason}") from error
    return Files(file, tuple(detectors), tuple(figures))


def provenance(found: Calibration, at: AtBudget) -> list[str]:
    """What the thresholds of a budget are good for, a line each."""
    made = found.made_for
    evictor = made.get("evictor", {})
    options = ", ".join(f"{name} {value}" for name, value in evictor.items() if name != "kind")
    return [
        f"calibrated by kvrescue {found.version} on {found.date} from {', '.join(found.runs)} "
        f"({', '.join(found.problem_sets)})",
        f"for {made.get('base.model', 'the base')}, evictor {evictor.get('kind')}: "
        f"budget {at.budget}, {options}",
        f"tokenizer {made.get('tokenizer')}, sampling "
        + ", ".join(f"{n} {v!r}" for n, v in made.get("sampling", {}).items()),
        f"false aborts at most {found.target:g} (95 % bound by problems); healthy: "
        f"{found.healthy}, degenerate: {found.degenerate}",
    ]


def snippet(found: Calibration, at: AtBudget) -> str:
    """The detectors of a budget as YAML, to be pasted into a proposer's section."""
    head = [f"# {line}" for line in provenance(found, at)]
    detectors = []
    for threshold in at.detectors:
        value = threshold.present if threshold.proposed is None else threshold.proposed
        entry: dict[str, Any] = {"kind": threshold.kind, **threshold.options}
        detectors.append(entry | {threshold.option: value})
        if threshold.proposed is None:
            head.append(f"# {threshold.name} as it was: {threshold.why_not}")
    body = yaml.safe_dump({"detectors": detectors}, sort_keys=False, default_flow_style=None)
    return "\n".join(head) + "\n" + body


# -- Figure 3 ---------------------------------------------------------------------------------


def draw(at: AtBudget, samples: Samples) -> Figure | None:
    """Histograms of what every detector measures; None where no candidate is long enough."""
    shown = [view for view in _views(at, samples) if any(view[1].values())]
    if not shown:
        return None
    figure, panels = panels_for(len(shown), share_y=False)
    for panel, (threshold, values) in zip(panels, shown, strict=True):
        _panel(panel, threshold, values)
    fullest = max(range(len(shown)), key=lambda place: (len(shown[place][1]), -place))
    legend(figure, panels[fullest])
    return figure


def _views(
    at: AtBudget, samples: Samples
) -> Iterator[tuple[DetectorThreshold, dict[str, list[float]]]]:
    groups = {
        f"evicted base, B = {at.budget}": ("evicted", at.budget),
        "full-KV": ("full-KV", None),
        "helper": ("helper", None),
    }
    for column, threshold in enumerate(at.detectors):
        found = {
            label: [
                value
                for sample in samples.found
                if (sample.group, sample.budget) == group
                and (value := sample.values[column]) is not None
            ]
            for label, group in groups.items()
        }
        yield threshold, {label: values for label, values in found.items() if values}


def _panel(panel: Axes, threshold: DetectorThreshold, values: dict[str, list[float]]) -> None:
    marks = [Mark(threshold.present, "now")]
    if threshold.proposed is not None:
        marks.append(Mark(threshold.proposed, "proposed", BLUE, "-"))
    histogram(panel, values, marks)
    label = _MEASURED.get(threshold.kind)
    unit = f" ({threshold.unit})" if threshold.unit else ""
    panel.set_xlabel(label.format_map(threshold.options) if label else f"{threshold.kind}{unit}")
    panel.set_ylabel("Candidates (%)")

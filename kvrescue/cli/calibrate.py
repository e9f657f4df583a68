"""`kvrescue calibrate`: thresholds of the detectors from recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from kvrescue.cli.console import emit_json, human
from kvrescue.cli.options import (
    Config,
    Json,
    Overrides,
    PluginList,
    Preset,
    chosen_source,
    load_plugins,
)

if TYPE_CHECKING:
    from rich.table import Table

    from kvrescue.calibration import AtBudget, Calibration, DetectorThreshold, Rate, Rates, Samples
    from kvrescue.calibration.samples import Degenerate, Healthy

__all__ = ["calibrate"]


def calibrate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of `bench run`, with traces.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write (default: RUN/calibration)."),
    ] = None,
    false_aborts: Annotated[
        float,
        typer.Option(
            "--false-aborts",
            metavar="SHARE",
            help="Most that the 95 % bound on the share of aborted healthy candidates may be.",
        ),
    ] = 0.01,
    budget: Annotated[
        list[int] | None,
        typer.Option("--budget", metavar="B", help="Only this budget; may be repeated (all)."),
    ] = None,
    healthy: Annotated[
        str,
        typer.Option(
            "--healthy",
            metavar="right|full-kv",
            help="Healthy are: steps of the evicted base committed on the way to a right answer, "
            "or what the base writes and ends by itself with its full cache.",
        ),
    ] = "right",
    degenerate: Annotated[
        str,
        typer.Option(
            "--degenerate",
            metavar="either|cut|loop",
            help="Degenerate are, in wrong trajectories: candidates that a limit cut off, those "
            "that repeat themselves, or both.",
        ),
    ] = "either",
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="S", help="Draws the half of the problems that chooses."),
    ] = 0,
    preset: Preset = None,
    config: Config = None,
    overrides: Overrides = None,
    plugin: PluginList = None,
    json: Json = False,
) -> None:
    """Propose thresholds for the detectors, from recorded traces with known outcomes.

    One half of the problems chooses, the other half measures. The detectors are those of the runs'
    kv_rescue, or of --preset or --config. Needs the extra `eval`.
    """
    from kvrescue import calibration as made
    from kvrescue.config import load_config
    from kvrescue.evaluation.runs.folder import Run
    from kvrescue.evaluation.tables.drawing import require_matplotlib

    require_matplotlib()
    made.check_options(false_aborts, healthy, degenerate, seed)
    load_plugins(plugin)
    read = [Run.read(run) for run in runs]
    recorded = preset is None and config is None
    source = made.recorded_config(read) if recorded else chosen_source(preset, config)
    samples = made.read_samples(read, load_config(source, overrides or ()))
    found = made.calibrate(
        samples,
        false_aborts=false_aborts,
        healthy=cast("Healthy", healthy),
        degenerate=cast("Degenerate", degenerate),
        seed=seed,
        budgets=budget or None,
    )
    files = made.write_calibration(found, samples, out or runs[0] / "calibration")
    if json:
        emit_json(found.data())
        return
    _show(found, samples)
    human().print(f"written: {files.calibration}", markup=False, soft_wrap=True)


def _show(found: Calibration, samples: Samples) -> None:
    console = human()
    made = found.made_for
    lines = [
        f"{made.get('base.model', 'base')}, evictor {made.get('evictor', {}).get('kind')}: "
        f"{len(samples.found)} candidates of {found.trajectories} trajectories in "
        f"{', '.join(found.runs)} ({', '.join(found.problem_sets)})",
        f"target: at most {_percent(found.target)} of healthy candidates aborted (95 % bound, "
        f"problems as trials); healthy: {found.healthy}, degenerate: {found.degenerate}",
    ]
    lines += [f"damaged, left out: {name}" for name in found.damaged]
    for line in lines:
        console.print(line, markup=False)
    for at in found.budgets:
        console.print(_table(at))
        for threshold in at.detectors:
            if threshold.why_not is not None:
                console.print(f"{threshold.name}: {threshold.why_not}", markup=False)
        for override in at.overrides():
            console.print(f"--set {override}", markup=False, soft_wrap=True)


def _table(at: AtBudget) -> Table:
    from rich import box
    from rich.table import Table

    counts = at.counts
    table = Table(
        title=f"B = {at.budget}: {counts.healthy} healthy candidates of "
        f"{counts.healthy_problems} problems, {counts.degenerate} degenerate ones of "
        f"{counts.degenerate_problems}",
        caption="Measured on the half of the problems that did not choose: share (95 % bound) "
        "aborted/all",
        box=box.SIMPLE_HEAD,
    )
    labels = ("Detector", "", "Fires at", "False aborts", "Degenerate caught", "full-KV", "helper")
    for label in labels:
        table.add_column(label, no_wrap=True)
    for threshold in at.detectors:
        unit = f" ({threshold.unit})" if threshold.unit else ""
        now = _fires(threshold, threshold.present), *_rates(threshold.now)
        others = [_share(threshold.others.get(name)) for name in ("full-KV", "helper")]
        if threshold.proposed is None or threshold.measured is None:
            table.add_row(f"{threshold.kind}{unit}", "now", *now, *others)
        else:
            table.add_row(f"{threshold.kind}{unit}", "now", *now)
            new = _fires(threshold, threshold.proposed), *_rates(threshold.measured)
            table.add_row("", "proposed", *new, *others, style="bold")
        table.add_section()
    table.add_row("all together", "now", "", *_rates(at.together_now))
    table.add_row("", "proposed", "", *_rates(at.together), style="bold")
    return table


_SIGNS = {"above": ">", "from": ">=", "below": "<", "up to": "<="}


def _fires(threshold: DetectorThreshold, value: float) -> str:
    return f"{_SIGNS[threshold.fires]} {value:g}"


def _rates(rates: Rates) -> tuple[str, str]:
    return _rate(rates.false_aborts), _rate(rates.caught, low=True)


def _rate(rate: Rate, *, low: bool = False) -> str:
    if rate.share is None:
        return "-"
    bound = f"> {100 * rate.low:.3g}" if low else f"< {100 * rate.high:.3g}"
    return f"{_percent(rate.share)} ({bound}) {rate.aborted}/{rate.candidates}"


def _share(rate: Rate | None) -> str:
    return "-" if rate is None or rate.share is None else _percent(rate.share)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"

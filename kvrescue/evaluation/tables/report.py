"""Reports: a run's tables and figures in a folder, readable from top to bottom.

    report.md       everything, figures embedded
    report.json     the same as data
    tables/*.csv    one file for each table
    figures/*       PNG and SVG

The files are functions of the run: written twice, they are the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvrescue.errors import RunError
from kvrescue.evaluation.methods import BASE, HELPER
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.tables.ablation import ablation_table
from kvrescue.evaluation.tables.accuracy import accuracy_table, recovery_table
from kvrescue.evaluation.tables.cells import Cells
from kvrescue.evaluation.tables.comparisons import equal_candidates_table, equal_flops_table
from kvrescue.evaluation.tables.drawing import require_matplotlib
from kvrescue.evaluation.tables.exits import exit_table
from kvrescue.evaluation.tables.figures import write_figures
from kvrescue.evaluation.tables.flops import Prices, flops_table
from kvrescue.evaluation.tables.oracle import oracle_table
from kvrescue.evaluation.tables.quality import (
    degraded_table,
    disagreement_table,
    failure_table,
    grading_table,
)
from kvrescue.evaluation.tables.shape import shape_table
from kvrescue.evaluation.tables.signals import Signals, signal_table, signals_of
from kvrescue.evaluation.tables.sources import source_table
from kvrescue.evaluation.tables.table import Table, as_csv, as_data, as_markdown
from kvrescue.evaluation.tables.tokens import token_table
from kvrescue.evaluation.tables.traced import Traced

__all__ = ["SCHEMA", "ReportFiles", "report_data", "tables_of", "write_report"]

SCHEMA: Final = 1
"""Raised when a field of report.json changes its meaning or goes away."""

_CAPTIONS: Final = {
    "figure_1a": "Figure 1a. Who is right of evicted base and helper, and full-KV.",
    "figure_1b": "Figure 1b. Accuracy over N, by budget.",
    "figure_3": "Figure 3. Degeneration signals of candidates, with the detectors' thresholds.",
    "figure_5": "Figure 5. Accuracy over the budget, by N.",
    "figure_6": "Figure 6. Share of committed steps by source.",
}
_SHOWN: Final = 20
"""Rows of a list that Markdown shows; CSV and JSON hold all."""
_LISTS: Final = ("disagreements", "failures")


@dataclass(frozen=True)
class ReportFiles:
    """What was written."""

    report: Path
    data: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    shape: Table
    """The paper's shape, asked of the run."""
    damaged: tuple[str, ...] = ()
    """Traces that could not be read, relative to the run's folder; they are left out."""


def tables_of(
    cells: Cells, signals: Signals | None, traced: Traced | None = None
) -> dict[str, Table]:
    """Every table by name, in the order of the report."""
    prices = Prices(cells)
    tables = (
        shape_table(cells),
        accuracy_table(cells),
        recovery_table(cells),
        token_table(cells),
        ablation_table(cells),
        oracle_table(cells),
        source_table(cells),
        signal_table(signals),
        exit_table(cells, traced),
        equal_candidates_table(cells),
        equal_flops_table(cells, prices),
        flops_table(cells, prices),
        grading_table(cells),
        disagreement_table(cells),
        degraded_table(cells),
        failure_table(cells),
    )
    return {table.name: table for table in tables}


def report_data(cells: Cells, tables: Mapping[str, Table]) -> dict[str, Any]:
    """What report.json holds."""
    return {
        "schema": SCHEMA,
        "run": _about(cells),
        "tables": {name: as_data(table) for name, table in tables.items()},
    }


def write_report(
    run: Run, folder: str | os.PathLike[str], composition: str | None = None
) -> ReportFiles:
    """Write a run's report, finished or not; files of an earlier one are replaced.

    Args:
        run: as read from its folder.
        folder: where to; it is made when it is missing.
        composition: which of the run's is meant; None: the one that was asked for last.

    Raises:
        RunError: the folder cannot be written.
        UnknownNameError: the run has no such composition.
        DependencyError: matplotlib is not installed.
    """
    require_matplotlib()
    cells = Cells.of(run, composition)
    traced = Traced(cells)
    signals = signals_of(cells, traced)
    tables = tables_of(cells, signals, traced)
    where = Path(folder)
    try:
        for name in ("tables", "figures"):
            (where / name).mkdir(parents=True, exist_ok=True)
        figures = write_figures(cells, tables, signals, where / "figures")
        written = [
            _write(where / "tables" / f"{name}.csv", as_csv(table))
            for name, table in tables.items()
        ]
        text = json.dumps(report_data(cells, tables), indent=1, allow_nan=False) + "\n"
        data = _write(where / "report.json", text)
        report = _write(where / "report.md", _markdown(cells, tables, figures))
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"the report cannot be written to {str(where)!r}: {reason}") from error
    drawn = tuple(file for files in figures.values() for file in files)
    damaged = tuple(traced.damaged)
    return ReportFiles(report, data, tuple(written), drawn, tables["shape"], damaged)


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    return path


# -- Markdown ---------------------------------------------------------------------------------


def _markdown(
    cells: Cells, tables: Mapping[str, Table], figures: Mapping[str, tuple[Path, ...]]
) -> str:
    parts = [f"# KV-Rescue on {cells.run.problems.name}\n", *_head(cells)]
    for table in tables.values():
        if table.name in _LISTS and not table.rows:
            continue
        parts.append(as_markdown(_shortened(table)))
        for name in table.figures:
            if name in figures:
                file = next(file for file in figures[name] if file.suffix == ".png")
                parts.append(f"![{_CAPTIONS[name]}](figures/{file.name})\n")
                parts.append(
                    f"*{_CAPTIONS[name]}* [SVG](figures/{file.with_suffix('.svg').name})\n"
                )
    return "\n".join(parts)


def _shortened(table: Table) -> Table:
    if table.name not in _LISTS or len(table.rows) <= _SHOWN:
        return table
    note = f"The first {_SHOWN} of {len(table.rows)}; all are in tables/{table.name}.csv."
    return dataclasses.replace(table, rows=table.rows[:_SHOWN], note=f"{note} {table.note}".strip())


def _head(cells: Cells) -> Iterable[str]:
    about = _about(cells)
    rows = about["rows"]
    lines = [
        f"- Problems: {about['problems']}, graded by `{about['rule']}`.",
        f"- Rows: {rows['done']:,} of {rows['planned']:,} planned; {rows['failed']:,} failed, "
        f"{rows['degraded']:,} degraded (left out of the tables), {rows['missing']:,} missing.",
    ]
    for name, model in about["models"].items():
        lines.append(f"- {name[:1].upper()}{name[1:]}: {model}.")
    for versions in about["versions"]:
        lines.append(f"- Versions: {', '.join(f'{k} {v}' for k, v in versions.items())}.")
    if cells.others:
        names = ", ".join(
            f"`{name}` (settings: {len(keys)})" for name, keys in cells.others.items()
        )
        lines.append(
            f"- Composition: `{cells.composition}`, the settings that differ in method, budget, N "
            f"and seed alone. The folder holds others, which are left out: {names}; "
            "`kvrescue bench report RUN --composition NAME` shows one."
        )
    yield "\n".join(lines) + "\n"


def _about(cells: Cells) -> dict[str, Any]:
    run = cells.run
    keys = {setting.key for setting in cells.settings}
    planned = len(keys) * len(run.problems)
    records = [record for (key, _), record in run.records.items() if key in keys]
    failed = sum(record.failure is not None for record in records)
    return {
        "problems": run.problems.describe(),
        "rule": run.problems.rule,
        "methods": sorted({cell.method for cell in cells}),
        "budgets": cells.budgets,
        "ns": sorted({cell.n for cell in cells}),
        "seeds": sorted({seed for cell in cells for seed in cell.seeds}),
        "rows": {
            "planned": planned,
            "done": len(records) - failed,
            "failed": failed,
            "missing": planned - len(records),
            "degraded": sum(record.failure is None and record.degraded for record in records),
        },
        "models": _models(cells),
        "versions": _versions(run),
        "composition": cells.composition,
        "other_compositions": {name: list(keys) for name, keys in cells.others.items()},
    }


def _models(cells: Cells) -> dict[str, str]:
    """What each part is, by proposer."""
    found: dict[str, str] = {}
    for cell in cells:
        policies = {name: part.policy for name, part in cell.config.proposers.items()}
        for name in (BASE, HELPER):
            policy = policies.get(name)
            if policy is None:
                continue
            evictor = getattr(policy, "evictor", None)
            text = f"{getattr(policy, 'model', policy.kind)} on {policy.kind}"
            if evictor is not None:
                text += f", evictor {evictor.kind}, window {getattr(evictor, 'window', 0)}"
            if name not in found or evictor is not None:
                found[name] = text
        scorer = cell.config.scorer
        found["scorer"] = f"{scorer.kind} {getattr(scorer, 'model', '')}".strip()
    return found


def _versions(run: Run) -> list[dict[str, str]]:
    """Every set of versions that sessions noted, once."""
    found: list[dict[str, str]] = []
    for session in run.sessions:
        versions = session.get("versions")
        if isinstance(versions, Mapping):
            plain = {str(k): str(v) for k, v in versions.items() if v is not None}
            if plain and plain not in found:
                found.append(plain)
    return found

"""`kvrescue bench run`: methods x budgets x N x seeds over a problem set, resumable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from kvrescue.cli.bench_report import warn_of_damaged
from kvrescue.cli.console import emit_json, human, messages
from kvrescue.cli.engines import EngineName, chosen_engine, prepare_engine
from kvrescue.cli.options import (
    Config,
    Json,
    Overrides,
    PluginList,
    Preset,
    chosen_source,
    plugin_overrides,
    worker_count,
)
from kvrescue.faults import whole_number

if TYPE_CHECKING:
    from kvrescue.evaluation.methods import Method
    from kvrescue.evaluation.runs.plan import BenchPlan
    from kvrescue.evaluation.runs.run import Progress

__all__ = ["run"]

_MOST_SEEDS = 1000


def run(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", help="The run's folder; an unfinished run in it goes on."
        ),
    ],
    problems: Annotated[
        str,
        typer.Option(
            "--problems",
            metavar="NAME|FILE.jsonl",
            help="tiny:COUNT, gsm8k, math500, aime24, amc23, olympiadbench, a JSONL file of "
            "{id, question, answer}, or OWNER/NAME on the Hugging Face hub.",
        ),
    ] = "tiny",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FILE.jsonl", help="A local file of a named set's problems."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="P", help="Only the first P problems.")
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            "--budget", metavar="B", help="Cache budget; may be repeated (default: as configured)."
        ),
    ] = None,
    n: Annotated[
        list[int] | None,
        typer.Option(
            "--n",
            "-n",
            metavar="N",
            help="Candidates of each proposer; may be repeated (default: 1, 8).",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", metavar="S", help="Number of seeds (default: the paper's for the set)."
        ),
    ] = None,
    first_seed: Annotated[
        int, typer.Option("--seed", metavar="S", help="The first seed; then S + 1, ...")
    ] = 0,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="full_kv, helper, best_of_n, interleaved or kv_rescue; may be repeated (all).",
        ),
    ] = None,
    matched: Annotated[
        bool,
        typer.Option(
            "--matched/--no-matched",
            help="Also evicted base and helper with 2N candidates: as many as KV-Rescue draws.",
        ),
    ] = True,
    traces: Annotated[
        int,
        typer.Option(
            "--traces", metavar="P", help="Keep every event of the first P problems (first seed)."
        ),
    ] = 10,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="W",
            help="Processes (default: one with vLLM or a GPU, else one per core, at most 4).",
        ),
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option("--in-flight", metavar="P", help="Problems that a worker solves at once."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write DIR/report at the end.")
    ] = True,
    preset: Preset = None,
    config: Config = None,
    engine: EngineName = None,
    overrides: Overrides = None,
    plugin: PluginList = None,
    json: Json = False,
) -> None:
    """Measure the paper's methods on a problem set, and keep everything that the tables need.

    A run that was interrupted goes on with the same command: nothing that is recorded is run again.
    More budgets, methods, seeds or problems may be added to a folder later.
    """
    from kvrescue.evaluation.methods import METHODS
    from kvrescue.evaluation.runs.folder import Run
    from kvrescue.evaluation.runs.plan import BenchPlan, configs_by_budget
    from kvrescue.evaluation.runs.run import RunOptions, run_plan
    from kvrescue.evaluation.sources import load_problems
    from kvrescue.evaluation.tables.drawing import require_matplotlib
    from kvrescue.evaluation.tables.report import write_report

    if report:
        require_matplotlib()  # now, not when everything is measured
    asked = load_problems(problems, data, limit)
    changes = (*plugin_overrides(plugin), *(overrides or ()))
    configs = configs_by_budget(
        chosen_source(preset, config),
        budget or (),
        changes,
        engine=chosen_engine(engine),
        problems=asked,
    )
    count = asked.seeds if seeds is None else seeds
    whole_number("seeds", count, 1, _MOST_SEEDS)
    plan = BenchPlan(
        problems=asked,
        configs=configs,
        methods=cast("tuple[Method, ...]", tuple(method)) if method else METHODS,
        ns=tuple(n) if n else (1, 8),
        seeds=tuple(range(first_seed, first_seed + count)),
        matched=matched,
    )
    first = next(iter(configs.values()))
    prepare_engine(first)
    options = RunOptions(
        workers=worker_count(workers, alone=_one_device(plan)),
        in_flight=in_flight,
        traces=traces,
    )
    with _Live(plan) as live:
        failures = run_plan(plan, out, options, live.tell)
    files = write_report(Run.read(out), out / "report") if report else None
    warn_of_damaged(() if files is None else (out / name for name in files.damaged))
    if json:
        where = None if files is None else str(files.report)
        emit_json({"run": str(out), "failures": failures, "report": where})
    else:
        settings = f"{len(plan.settings)} settings of {asked.describe()}"
        human().print(f"{settings} are in {out}", markup=False, soft_wrap=True)
        if failures:
            human().print(f"{failures} problems failed; the same command tries them again")
        if files is not None:
            human().print(f"report: {files.report}", markup=False, soft_wrap=True)


def _one_device(plan: BenchPlan) -> bool:
    """Whether the models run on a GPU, or on vLLM, which takes all cores."""
    kinds = [s.policy.kind for c in plan.configs.values() for s in c.proposers.values()]
    return Path("/proc/driver/nvidia").exists() or any(kind.startswith("vllm") for kind in kinds)


class _Live:
    """A bar on a terminal; else a line for each setting that is done."""

    def __init__(self, plan: BenchPlan) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = messages()
        self._started = time.monotonic()
        self._first_share: float | None = None
        self._bar = Progress(
            TextColumn("{task.fields[now]}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rate]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("bench", total=1.0, now="starting", rate="")

    def tell(self, progress: Progress) -> None:
        """Show how far the run is."""
        if self._first_share is None:
            self._first_share = progress.share
        setting = progress.setting
        budget = "full KV" if setting.budget is None else f"B {setting.budget}"
        name = f"{setting.method}, {budget}, N {setting.n}, seed {setting.seed}"
        accuracy = f"{progress.correct}/{progress.done} right"
        self._bar.update(
            self._task,
            completed=progress.share,
            now=f"{name}: {accuracy}",
            rate=self._rate(progress),
        )
        failure = progress.record.failure
        if failure is not None:
            self._say(f"{name}, problem {progress.record.problem} failed: {failure.message}")
        elif progress.done == progress.of:
            self._say(
                f"{name}: {accuracy} ({progress.share:.0%} of the run, {self._rate(progress)})"
            )

    def _say(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, markup=False)

    def _rate(self, progress: Progress) -> str:
        spent = time.monotonic() - self._started
        per_minute = 60 * progress.finished / spent
        gained = progress.share - (self._first_share or 0.0)
        if gained <= 0:
            return f"{per_minute:.0f} problems/min"
        left = spent * (1 - progress.share) / gained
        return f"{per_minute:.0f} problems/min, {_duration(left)} left"

    def __enter__(self) -> _Live:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), round(seconds / 3600, 1)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{hours} h"

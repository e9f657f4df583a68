"""`kvrescue demo`: what eviction costs and what KV-Rescue wins back, measured now."""

from __future__ import annotations

from typing import Annotated

import typer

from kvrescue.cli.console import emit_json, human, messages
from kvrescue.cli.engines import EngineName, chosen_engine, prepare_engine
from kvrescue.cli.options import (
    DEFAULT_PRESET,
    Json,
    Overrides,
    PluginList,
    plugin_overrides,
    worker_count,
)

__all__ = ["demo"]


def demo(
    problems: Annotated[
        int | None,
        typer.Option("--problems", metavar="P", help="Test problems (default: 100, quick: 20)."),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            "--budget",
            metavar="B",
            help="Cache budget; may be repeated, the smallest is the headline's "
            "(default: those of the second table).",
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(
            "--n", "-n", metavar="N", help="Candidates of each proposer (default: 8, quick: 2)."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", help="Draws problems and samples.")
    ] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few problems and no second table: a rough look.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="W", help="Processes (default: one per core, at most 4)."
        ),
    ] = None,
    engine: EngineName = None,
    overrides: Overrides = None,
    plugin: PluginList = None,
    json: Json = False,
) -> None:
    """Show the tiny trio: a problem solved side by side, and tables over many problems.

    Compared are the base with its full cache, the helper, the evicted base (best of N) and
    KV-Rescue, all drawn anew on test problems that no training has seen. In JSON, accuracies and
    shares are fractions, tokens are means per problem, and `aborted` counts the base's aborted
    candidates over all problems.
    """
    from kvrescue.evaluation.demo import BUDGETS, DemoPlan, run_demo
    from kvrescue.evaluation.demo_data import as_data

    processes = worker_count(workers)
    listed = plugin_overrides(plugin)
    plan = DemoPlan(
        problems=_either(problems, 20 if quick else 100),
        budgets=tuple(budget) if budget else BUDGETS[:1] if quick else BUDGETS,
        n=_either(n, 2 if quick else 8),
        seed=seed,
        source=DEFAULT_PRESET,
        engine=chosen_engine(engine),
        overrides=(*listed, *(overrides or ())),
    )
    prepare_engine(plan.configs[plan.budget])
    with _Progress() as progress:
        report = run_demo(plan, processes, progress.tell)
    if json:
        emit_json(as_data(report))
    else:
        from kvrescue.cli.demo_view import show_report

        show_report(human(), report)


def _either(given: int | None, default: int) -> int:
    return default if given is None else given


class _Progress:
    """A bar on stderr, for terminals only."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = messages()
        self._bar = Progress(
            TextColumn("measuring"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("measuring", total=None)

    def tell(self, done: int, whole: int) -> None:
        self._bar.update(self._task, completed=done, total=whole)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

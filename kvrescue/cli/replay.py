"""`kvrescue replay`: the selection of recorded trajectories once more, without models."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kvrescue.cli.console import emit_json, human
from kvrescue.cli.options import Json, Overrides, PluginList, load_plugins

if TYPE_CHECKING:
    from kvrescue.replay import Replayed, VerdictChange
    from kvrescue.selector import Observer
    from kvrescue.types import Verdict

__all__ = ["replay"]

_STYLES = {"same": "green", "changed": "yellow", "diverged": "red"}


def replay(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A file that --trace or a run has written.")
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A YAML file with what is to be otherwise."),
    ] = None,
    overrides: Overrides = None,
    plugin: PluginList = None,
    out: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.jsonl", help="Append the replay's events here."),
    ] = None,
    json: Json = False,
) -> None:
    """Select again over recorded candidates: other detectors or scorers, and no models.

    The rules are the recorded ones, unless --config or --set says otherwise.
    Try `kvrescue replay run.jsonl --set proposers.base.detectors.ngram.min_span=8`.
    """
    from kvrescue.replay import replay as run

    load_plugins(plugin)
    with _writing(out, trace) as observers:
        found = list(run(trace, config, overrides or (), observers=observers))
    if json:
        emit_json([_as_data(replayed) for replayed in found])
        return
    _show(found)


@contextlib.contextmanager
def _writing(out: Path | None, trace: Path) -> Iterator[list[Observer]]:
    from kvrescue.errors import ConfigError
    from kvrescue.events import TraceWriter

    if out is None:
        yield []
        return
    if out.exists() and trace.exists() and out.samefile(trace):
        raise ConfigError(f"--trace {str(out)!r} is the recording itself; choose another file")
    with TraceWriter(out) as writer:
        yield [writer]


def _as_data(replayed: Replayed) -> dict[str, Any]:
    recorded, solution = replayed.recorded, replayed.solution
    end = recorded.finished.solution if recorded.finished else None
    return {
        "question": recorded.question.id,
        "seed": recorded.seed,
        "outcome": replayed.outcome,
        "diverged_at": replayed.diverged_at,
        "reason": replayed.reason,
        "steps": len(recorded.steps),
        "recorded": None if end is None else {"stop": end.stop.value, "answer": end.answer},
        "replayed": (
            None if solution is None else {"stop": solution.stop.value, "answer": solution.answer}
        ),
        "verdicts": [_change(change) for change in replayed.verdict_changes],
    }


def _change(change: VerdictChange) -> dict[str, Any]:
    def plain(verdict: Verdict | None) -> dict[str, Any] | None:
        if verdict is None:
            return None
        return {"detector": verdict.detector, "position": verdict.position}

    return {
        "step": change.step,
        "draw": change.draw,
        "proposer": change.proposer,
        "index": change.index,
        "recorded": plain(change.recorded),
        "now": plain(change.now),
    }


def _show(found: Sequence[Replayed]) -> None:
    console = human()
    table = Table("question", "seed", "steps", "outcome", "verdicts changed")
    for replayed in found:
        recorded, number = replayed.recorded, replayed.diverged_at
        outcome = Text(replayed.outcome, style=_STYLES[replayed.outcome])
        if number is not None:
            outcome.append(f" at step {number + 1}")
        changes = replayed.verdict_changes
        table.add_row(
            Text(recorded.question.id),
            str(recorded.seed),
            str(len(recorded.steps)),
            outcome,
            str(len(changes) or "-"),
        )
    console.print(table)
    for replayed in found:
        where = f"question {replayed.recorded.question.id}, seed {replayed.recorded.seed}"
        for change in replayed.verdict_changes:
            was, now = _short(change.recorded), _short(change.now)
            who = f"{change.proposer}[{change.index}]"
            console.print(Text(f"{where}, step {change.step + 1}, {who}: {was} -> {now}"))
        if replayed.reason is not None:
            console.print(Text(f"{where}: {replayed.reason}", style="red"), soft_wrap=True)
    counts: Counter[str] = Counter(replayed.outcome for replayed in found)
    console.print(
        f"{len(found)} trajectories: " + ", ".join(f"{counts[name]} {name}" for name in _STYLES)
    )


def _short(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not aborted"
    if verdict.detector == "replay":
        return f"not aborted any more at token {verdict.position}, where the recording ends"
    return f"{verdict.detector} at token {verdict.position}"

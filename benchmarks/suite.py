"""Run the benchmarks: python -m benchmarks.suite [--only NAME ...] [--quick]

Every benchmark compares sides that take turns in one process, which is its own: one that fails,
hangs or crashes is recorded, and the others are measured all the same. After each of them the whole
report is written, as OUT/report.md and OUT/report.json; what a process said is in OUT/NAME.log.

A report that is there already is kept, except for what is measured anew; with `--resume`, what it
has is not measured again. Exit status: 0, or 1 where something failed, or was named and not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.table import Table

from benchmarks import report as reports
from benchmarks.arguments import folder, told
from benchmarks.environments import ROOT, interpreter, missing, variables
from benchmarks.members import MEMBERS, Member, chosen
from benchmarks.ratios import Ratio, Size
from benchmarks.report import Outcome, Report, figure
from kvrescue.cli.interrupts import Interruption
from kvrescue.errors import ConfigError, RunError
from kvrescue.evaluation.files import locked
from kvrescue.evaluation.surroundings import surroundings
from kvrescue.faults import whole_number

__all__ = ["main", "run", "run_member"]

_GRACE = 5
"""Seconds that a process has to end after it was asked to."""


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    console = Console(stderr=True, highlight=False, emoji=False)
    interruption = Interruption()

    def work() -> int:
        if args.list:
            _list(args.only)
            return 0
        with interruption:
            return _run(args, console)

    try:
        return told(work)
    except (KeyboardInterrupt, SystemExit):
        if interruption.code is None:
            raise
        return interruption.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measure these")
    parser.add_argument("--list", action="store_true", help="what there is, and what it needs")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="less of everything")
    size.add_argument("--smoke", action="store_true", help="only whether it runs")
    parser.add_argument("--out", type=folder, help="folder of the report (runs/bench)")
    parser.add_argument("--threads", type=int, default=1, help="of each process (1)")
    parser.add_argument("--limit", type=float, help="seconds for each, in place of its own")
    parser.add_argument("--resume", action="store_true", help="leave out what the report has")
    return parser


def _list(names: list[str]) -> None:
    table = Table("name", "needs", "shows")
    for member in chosen(names):
        there = "" if interpreter(member.needs) else " (not set up)"
        table.add_row(member.name, member.needs + there, member.shows)
    Console(highlight=False, emoji=False).print(table)


def _run(args: argparse.Namespace, console: Console) -> int:
    size = Size.SMOKE if args.smoke else Size.QUICK if args.quick else Size.FULL
    members = chosen(args.only)
    whole_number("threads", args.threads, 1)
    if args.limit is not None and not 0 < args.limit < float("inf"):
        raise ConfigError(f"limit = {args.limit:g}: give a number of seconds above 0")
    folder = args.out or ROOT / "runs" / ("bench" if size is Size.FULL else f"bench-{size}")
    with _claimed(folder):
        return _measure(args, members, size, folder, console)


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Nobody else writes to the folder.

    Raises:
        RunError: somebody does, or it cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = locked(folder / "suite.lock")
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError(
            f"the folder {str(folder)!r} cannot be used: {why}; choose another"
        ) from None
    with lock:
        yield


def _measure(
    args: argparse.Namespace, members: list[Member], size: Size, folder: Path, console: Console
) -> int:
    everything = len(members) == len(MEMBERS) and not args.resume
    report = _begun(folder, Report(size, surroundings()["machine"], args.threads), everything)
    if args.resume:
        members = [m for m in members if (old := report[m.name]) is None or old.status != "done"]
    report = run(members, report, folder, console, limit=args.limit)
    _show(report, console, args.out or folder.relative_to(ROOT))
    bad = {"failed", "timed out"} | ({"not run"} if args.only else set())
    ran = [report[m.name] for m in members]
    return int(any(o is not None and o.status in bad for o in ran))


def _begun(folder: Path, new: Report, everything: bool) -> Report:
    """The report to go on with: that of the folder, or a new one.

    Raises:
        ConfigError: what is there was measured in another way, and some of it would be kept.
    """
    old = reports.read(folder)
    if old is None:
        return new
    for what in ("size", "threads", "machine"):
        before, now = getattr(old, what), getattr(new, what)
        if before != now:
            if everything:
                return new
            raise ConfigError(
                f"the report in {folder.name} was made with {what} = {before}, now it is {now}; "
                "use another --out"
            )
    return old


def run(
    members: list[Member],
    report: Report,
    folder: Path,
    console: Console,
    *,
    limit: float | None = None,
) -> Report:
    """Measure one after the other; the report is written after each, and when interrupted.

    Args:
        members: what.
        report: to go on with.
        folder: for reports and logs.
        console: for progress.
        limit: seconds on the wall for each, in place of its own.

    Returns:
        The report with what came of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, member in enumerate(members, 1):
        label = f"{number} of {len(members)}  {member.name}"
        outcome = None
        try:
            with console.status(f"{label}: {member.shows}"):
                outcome = run_member(member, report.size, folder, report.threads, limit)
        finally:
            if outcome is not None:
                report = report.with_outcome(outcome)
            elif report[member.name] is None:
                stopped = Outcome(member.name, "interrupted", "while it was measured", _now())
                report = report.with_outcome(stopped)
            reports.write(report, folder)
        console.print(f"{label}: {outcome.status} {outcome.why} ({outcome.seconds:.0f} s)")
    return report


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_member(
    member: Member, size: Size, folder: Path, threads: int = 1, limit: float | None = None
) -> Outcome:
    """Measure one in a process of its own; whatever becomes of it is told in the outcome."""
    python = interpreter(member.needs)
    started, clock, cpu = _now(), time.monotonic(), _cpu()
    if python is None:
        return Outcome(member.name, "not run", missing(member.needs), started)
    result, log = folder / f"{member.name}.part.json", folder / f"{member.name}.log"
    command = [python, "-m", "benchmarks.one", member.module, "--size", size]
    command += ["--out", str(result.resolve())]
    limit = member.limit if limit is None else limit
    why = ""
    try:
        result.unlink(missing_ok=True)
        with log.open("wb") as file, _process(command, file, threads) as process:
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status, why = 1, f"more than {limit:g} s"
        took = round(time.monotonic() - clock, 1), round(_cpu() - cpu, 1)
        if why:
            return Outcome(member.name, "timed out", why, started, *took)
        if status:
            return Outcome(member.name, "failed", _last_line(log, status), started, *took)
        try:
            found = json.loads(result.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            why = f"its result cannot be read: {type(error).__name__}"
            return Outcome(member.name, "failed", why, started, *took)
        ratios = tuple(Ratio.from_dict(r) for r in found["ratios"])
        return Outcome(member.name, "done", "", started, *took, found["versions"], ratios)
    finally:
        result.unlink(missing_ok=True)


@contextlib.contextmanager
def _process(command: list[str], log: BinaryIO, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which does not outlive the context."""
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=variables(threads),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)


def _cpu() -> float:
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_line(log: Path, status: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    said = said.replace(str(ROOT), ".").replace(str(Path.home()), "~")
    return f"exit status {status}: {said[:300]}" if said else f"exit status {status}"


def _show(report: Report, console: Console, folder: Path) -> None:
    table = Table("benchmark", "ratio", "median", "goal")
    for outcome in report.outcomes:
        for ratio in outcome.ratios:
            goal = (
                "" if ratio.goal is None else f"{ratio.goal}{'' if ratio.reached else ': missed'}"
            )
            table.add_row(outcome.name, ratio.name, figure(ratio.value), goal)
    console.print(table)
    console.print(f"{folder}/report.md")


if __name__ == "__main__":
    sys.exit(main())

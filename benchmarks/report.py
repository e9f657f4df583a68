"""The report of a run: one JSON document, and the same as Markdown.

Neither names a machine or a folder: what is told of the machine is its kind.

    python -m benchmarks.report runs/bench docs/performance.md

puts the report of a folder into a page, between the lines `<!-- bench:begin -->` and
`<!-- bench:end -->`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from benchmarks.arguments import folder, parser_of, told
from benchmarks.members import MEMBERS
from benchmarks.ratios import Ratio, Size
from kvrescue.errors import RunError
from kvrescue.evaluation.files import write_whole

__all__ = ["Outcome", "Report", "Status", "embedded", "figure", "markdown", "read", "write"]

Status: TypeAlias = Literal["done", "failed", "timed out", "interrupted", "not run"]

_FORMAT = 1
_BEGIN, _END = "<!-- bench:begin -->", "<!-- bench:end -->"
_WHAT_IS = {
    "cpu": "CPU time of the process",
    "wall": "time on the wall",
    "none": "counted, not timed",
}


@dataclass(frozen=True)
class Outcome:
    """What came of one member."""

    name: str
    status: Status
    why: str = ""
    """Unless it is done."""
    started: str = ""
    """ISO 8601; a report may hold outcomes of several starts."""
    seconds: float = 0.0
    """On the wall ..."""
    cpu: float = 0.0
    """... and of all cores, which is what it would be on a quiet machine."""
    versions: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """Of what decided the numbers."""
    ratios: tuple[Ratio, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything that is known."""

    size: Size
    machine: Mapping[str, Any]
    threads: int
    outcomes: tuple[Outcome, ...] = ()

    def with_outcome(self, outcome: Outcome) -> Report:
        """The report with one more outcome, in place of an older one of that member."""
        found = {o.name: o for o in self.outcomes} | {outcome.name: outcome}
        order = [*MEMBERS, *(name for name in found if name not in MEMBERS)]
        outcomes = tuple(found[name] for name in order if name in found)
        return dataclasses.replace(self, outcomes=outcomes)

    def __getitem__(self, name: str) -> Outcome | None:
        return next((o for o in self.outcomes if o.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "size": str(self.size),
            "threads": self.threads,
            "machine": dict(self.machine),
            "members": [
                {
                    **{k: v for k, v in dataclasses.asdict(o).items() if k != "ratios"},
                    "ratios": [ratio.as_dict() for ratio in o.ratios],
                }
                for o in self.outcomes
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """What `as_dict` made."""
        if data["format"] != _FORMAT or not isinstance(data["machine"], Mapping):
            raise ValueError("another format")
        threads = int(data["threads"])
        outcomes = []
        for fields in data["members"]:
            ratios = tuple(Ratio.from_dict(r) for r in fields["ratios"])
            outcomes.append(Outcome(**{**fields, "ratios": ratios}))
        return cls(Size(data["size"]), data["machine"], threads, tuple(outcomes))


def write(report: Report, folder: Path) -> None:
    """`report.json` and `report.md`, each the old one or the new one, whatever happens."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.as_dict(), indent=2, allow_nan=False) + "\n"
    write_whole(folder / "report.json", text.encode())
    write_whole(folder / "report.md", markdown(report).encode())


def read(folder: Path) -> Report | None:
    """The report in a folder; None where there is none.

    Raises:
        RunError: there is something else of that name.
    """
    file = folder / "report.json"
    try:
        return Report.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{file} is no report of this suite; use another --out") from error


# -- Markdown ---------------------------------------------------------------------------------


def figure(number: float) -> str:
    """Three digits that count, without exponents."""
    if number == 0 or number >= 100:
        return f"{number:.0f}"
    places = 2
    while number * 10**places < 100 and places < 6:
        places += 1
    return f"{number:.{min(places, 6)}f}" if number < 10 else f"{number:.1f}"


def markdown(report: Report) -> str:
    """The report as a page."""
    parts = (_head, _table, _goals, _missing, _members)
    return "\n".join(line for part in parts for line in part(report))


def embedded(report: Report, page: str) -> str:
    """A page with the report between its two marks, a level of headings further down.

    Raises:
        RunError: the page has not both marks, once and in order.
    """
    before, found, rest = page.partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if not (found and ended) or page.count(_BEGIN) > 1 or page.count(_END) > 1:
        raise RunError(f"the page needs one line {_BEGIN!r} and after it one {_END!r}")
    _, _, text = markdown(report).partition("\n\n")  # the page has a heading of its own
    text = text.replace("\n## ", "\n### ").rstrip()
    return f"{before}{_BEGIN}\n{text}\n{_END}{after}"


def _head(report: Report) -> Iterator[str]:
    machine = report.machine
    minutes, cpu = (sum(getattr(o, f) for o in report.outcomes) / 60 for f in ("seconds", "cpu"))
    threads = "1 thread" if report.threads == 1 else f"{report.threads} threads"
    yield "# Benchmarks"
    yield ""
    yield (
        f"{machine.get('processor')}, {machine.get('cores')} cores, "
        f"{machine.get('memory_gib')} GiB, {machine.get('system')}; {threads}; "
        f"{minutes:.1f} minutes, {cpu:.1f} of CPU time."
    )
    if report.size is not Size.FULL:
        yield f"Size {report.size}: less was measured than is needed for figures to rest on."
    if gpus := machine.get("gpus"):
        yield f"GPUs, which nothing here uses: {', '.join(gpus)}."
    yield ""
    for versions in _environments(report):
        yield f"- {versions}"
    yield ""


def _environments(report: Report) -> list[str]:
    """Every combination of versions that something was measured with."""
    found: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        if outcome.versions:
            versions = ", ".join(f"{k} {v}" for k, v in outcome.versions.items() if v)
            found.setdefault(versions, []).append(outcome.name)
    return [f"{', '.join(names)}: {versions}" for versions, names in found.items()]


def _table(report: Report) -> Iterator[str]:
    rows = [(o.name, ratio) for o in report.outcomes for ratio in o.ratios]
    if not rows:
        return
    yield "| benchmark | ratio | median | least to largest | turns | clock | goal |"
    yield "|---|---|---|---|---|---|---|"
    for name, ratio in rows:
        low, high = ratio.spread
        yield (
            f"| {name} | {ratio.name} | **{figure(ratio.value)}** "
            f"| {figure(low)} to {figure(high)} "
            f"| {len(ratio.by_turn)} | {ratio.clock} | {_goal(ratio)} |"
        )
    yield ""


def _goal(ratio: Ratio) -> str:
    said = f"{ratio.goal}: {'reached' if ratio.reached else 'missed'}" if ratio.goal else ""
    return said + (f" ({ratio.elsewhere})" if ratio.elsewhere else "")


def _goals(report: Report) -> Iterator[str]:
    goals = [(o.name, r) for o in report.outcomes for r in o.ratios if r.goal is not None]
    if not goals:
        return
    missed = [(name, ratio) for name, ratio in goals if not ratio.reached]
    yield f"Goals: {len(goals) - len(missed)} of {len(goals)} reached."
    for name, ratio in missed:
        yield f"Missed: {name}, {ratio.name}: {figure(ratio.value)} instead of {ratio.goal}."
    yield ""


def _missing(report: Report) -> Iterator[str]:
    absent = [o for o in report.outcomes if o.status != "done"]
    others = [name for name in MEMBERS if report[name] is None]
    if not absent and not others:
        return
    yield "Not measured:"
    yield ""
    for outcome in absent:
        yield f"- {outcome.name}: {outcome.status}: {outcome.why}"
    for name in others:
        yield f"- {name}: not asked for"
    yield ""


def _members(report: Report) -> Iterator[str]:
    for outcome in report.outcomes:
        if not outcome.ratios:
            continue
        member = MEMBERS.get(outcome.name)
        shows = f": {member.shows}" if member else ""
        yield f"## {outcome.name}{shows}"
        yield ""
        yield (
            f"Measured in {outcome.seconds:.0f} s, {outcome.cpu:.0f} s of CPU time, started "
            f"{outcome.started}."
        )
        yield ""
        for ratio in outcome.ratios:
            yield from _item(ratio)
        yield ""


def _item(ratio: Ratio) -> Sequence[str]:
    above, below = ratio.above, ratio.below
    return (
        f"- **{ratio.name}: {figure(ratio.value)}.** {ratio.means} Not: {ratio.means_not}",
        f"  {above.name}: {figure(above.median)}; {below.name}: {figure(below.median)} "
        f"({ratio.unit}; {_WHAT_IS[ratio.clock]}).",
    )


def main(arguments: Sequence[str]) -> int:
    """Put a folder's report into a page."""
    parser = parser_of("report", "Put the report of a folder into a page, between its marks.")
    parser.add_argument("folder", type=folder, metavar="FOLDER", help="of a report; runs/bench")
    parser.add_argument("page", type=Path, metavar="PAGE", help="docs/performance.md")
    args = parser.parse_args(arguments)

    def put() -> None:
        report = read(args.folder)
        if report is None:
            raise RunError(f"there is no report in {args.folder}; make bench writes one")
        try:
            page = args.page.read_text(encoding="utf-8")
            write_whole(args.page, embedded(report, page).encode())
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"the page {args.page}: {error}; name one that can be written") from None

    return told(put)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The view of a run: committed steps as they come, what they beat, and the accounts at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from kvrescue.cli.console import counted, source_style
from kvrescue.events import (
    CandidateFinished,
    Event,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
)
from kvrescue.types import Candidate, CommittedStep, Solution

__all__ = ["LiveView", "one_line"]

_EXCERPT = 60


class LiveView:
    """Prints events to a console; use it as a context manager.

    Args:
        console: where to.
        live: on a terminal, show a spinner while the next step is being drawn.
    """

    def __init__(self, console: Console, *, live: bool = True) -> None:
        self.console = console
        self._names: tuple[str, ...] = ()
        self._status: Status | None = None
        if live and console.is_terminal:
            self._status = console.status("loading models")

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def show(self, event: Event) -> None:
        """Tell of one event."""
        if isinstance(event, TrajectoryStarted):
            self._names = event.proposers
            self.console.print(Text(event.question.text, style="bold"))
            self.console.print(Text("steps by ").append_text(self._legend()))
            self._wait("drawing step 1")
        elif isinstance(event, CandidateFinished):
            self._wait(f"scoring step {event.step + 1}")
        elif isinstance(event, RoundSkipped):
            self.console.print(
                Text(f"  no candidate to choose from ({event.reason}), round {event.draw + 1}"),
                style="yellow",
            )
        elif isinstance(event, StepCommitted):
            self._step(event.step)
            self._wait(f"drawing step {event.step.number + 2}")
        else:
            self._stop()
            self._solution(event)

    def _legend(self) -> Text:
        legend = Text()
        for name in self._names:
            legend.append(" ■ ", style=source_style(name, self._names)).append(name)
        return legend

    def _step(self, step: CommittedStep) -> None:
        winner = step.candidate
        style = source_style(winner.policy, self._names)
        line = Text(f"{step.number + 1:3d} ")
        line.append(f"{winner.policy:<8}", style=f"bold {style}")
        line.append(f" {_score(step.score)}  ").append(one_line(winner.text), style=style)
        self.console.print(line)
        for candidate, score in zip(step.candidates, step.scores, strict=True):
            if candidate is not winner:
                self._rival(candidate, score)
        for degradation in step.degradations:
            self.console.print(
                Text(f"      degraded: {degradation.where}: {degradation.message}"), style="yellow"
            )

    def _rival(self, candidate: Candidate, score: float | None) -> None:
        name = f"{candidate.policy}[{candidate.index}]"
        excerpt = one_line(candidate.text, _EXCERPT)
        if candidate.verdict is not None:
            line = Text(f"      ✗ {name} aborted by {candidate.verdict.detector}: ", style="red")
            line.append(candidate.verdict.reason).append(f"  {excerpt}", style="dim")
        else:
            line = Text(f"      · {name:<10} {_score(score)}  {excerpt}", style="dim")
        self.console.print(line)

    def _solution(self, event: TrajectoryFinished) -> None:
        solution = event.solution
        answer = "no answer" if solution.answer is None else f"answer {solution.answer}"
        self.console.print()
        line = Text(answer, style="bold green" if solution.answer is not None else "bold red")
        line.append(
            f"  ({counted(len(solution.steps), 'step')}, ended by {solution.stop.value}, ", style=""
        )
        line.append(f"seed {solution.seed})")
        self.console.print(line)
        self.console.print(_tokens(solution), _caches(solution))

    def _wait(self, message: str) -> None:
        if self._status is not None:
            self._status.update(message)

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()


def one_line(text: str, limit: int | None = None) -> str:
    """A step's text on one line, control characters made visible, cut at `limit`."""
    shown = "".join(c if c.isprintable() else "⏎" if c == "\n" else "�" for c in text.rstrip("\n"))
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1] + "…"


def _score(score: float | None) -> str:
    return "  -  " if score is None else f"{score:.3f}"


def _tokens(solution: Solution) -> Table:
    table = Table(
        "proposer", "candidates", "aborted", "tokens generated", "steps committed", "their tokens"
    )
    for name, use in solution.tokens.items():
        numbers = (
            use.candidates,
            use.aborted,
            use.generated,
            use.committed_steps,
            use.committed_tokens,
        )
        table.add_row(name, *map(str, numbers))
    return table


def _caches(solution: Solution) -> Table:
    table = Table("cache", "tokens seen", "entries held", "peak", "bound", "evictions", "dropped")
    for name, stats in solution.caches.items():
        bound = "-" if stats.bound is None else str(stats.bound)
        table.add_row(
            name,
            str(stats.logical_length),
            str(stats.physical_length),
            str(stats.peak_physical),
            bound,
            str(stats.evictions),
            str(stats.dropped),
        )
    return table

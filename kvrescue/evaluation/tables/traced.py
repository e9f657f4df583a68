"""What a run has traced, for tables: candidates of its cells, without what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvrescue.errors import RunError
from kvrescue.evaluation.methods import Method
from kvrescue.evaluation.tables.cells import Cells
from kvrescue.events import CandidateFinished
from kvrescue.types import Candidate

__all__ = ["Traced"]


@dataclass
class Traced:
    """Reads traces, and remembers which could not be read."""

    cells: Cells
    damaged: dict[str, None] = field(default_factory=dict)
    """Files, relative to the run's folder, in the order in which they were met."""

    def candidates(
        self, method: Method, budget: int | None, proposer: str, n: int | None = None
    ) -> Iterator[Candidate]:
        """Candidates of a proposer in every traced trajectory of a method.

        Args:
            method: of the settings.
            budget: theirs; None where nothing is evicted.
            proposer: whose candidates.
            n: theirs; None: any.
        """
        run = self.cells.run
        for setting in self.cells.settings:
            if (setting.method, setting.budget) != (method, budget):
                continue
            if n is not None and setting.n != n:
                continue
            for problem in run.problems:
                try:
                    events = run.events(setting.key, problem.id) or []
                except RunError:
                    self.damaged[str(run.trace_file(setting.key, problem.id))] = None
                    continue
                for event in events:
                    if isinstance(event, CandidateFinished) and event.candidate.policy == proposer:
                        yield event.candidate

    @property
    def note(self) -> str:
        """What a table says of damaged traces; empty where there are none."""
        if not self.damaged:
            return ""
        names = ", ".join(f"`{name}`" for name in self.damaged)
        return f" Damaged traces are left out (delete them): {names}."

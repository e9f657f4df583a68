"""An observer that logs a run as JSON lines: what was drawn, chosen and evicted, and when.

    kvrescue solve --plugin examples/jsonl_logger.py "$(kvrescue problem)"

A trace (`--trace`) holds every candidate in full, for replays and reports. A log is for eyes and
`jq`: short lines, with the time, and with the evictions that a trace leaves out. It goes to the
file that KVRESCUE_LOG names, `kvrescue-log.jsonl` by default. In Python, `kvrescue.register` takes
this module.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import Any

from kvrescue import (
    CandidateFinished,
    EvictionFired,
    RoundSkipped,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
    hookimpl,
)

_evictions: Counter[tuple[str, int, str]] = Counter()
"""Not written yet, by question, seed and proposer: an evictor may fire with every token."""


def write(kind: str, event: Any, **fields: Any) -> None:
    """Append one line; a line is written whole or not at all, so a log may be read meanwhile."""
    told = {"time": time.time(), "event": kind, "question": event.question_id, "seed": event.seed}
    line = json.dumps(told | fields, ensure_ascii=False) + "\n"
    path = os.environ.get("KVRESCUE_LOG", "kvrescue-log.jsonl")
    with open(path, "a", encoding="utf-8") as file:
        file.write(line)


@hookimpl
def kvrescue_trajectory_started(event: TrajectoryStarted) -> None:
    write("started", event, text=event.question.text, proposers=event.proposers)


@hookimpl
def kvrescue_candidate_finished(event: CandidateFinished) -> None:
    candidate = event.candidate
    verdict = candidate.verdict
    write(
        "candidate",
        event,
        step=event.step,
        by=f"{candidate.policy}[{candidate.index}]",
        tokens=candidate.n_tokens,
        stop=candidate.stop,
        aborted=None if verdict is None else f"{verdict.detector}: {verdict.reason}",
    )


@hookimpl
def kvrescue_round_skipped(event: RoundSkipped) -> None:
    write("skipped", event, step=event.step, reason=event.reason)


@hookimpl
def kvrescue_step_committed(event: StepCommitted) -> None:
    step = event.step
    write_evictions(event)
    write("step", event, step=step.number, by=step.candidate.policy, score=step.score)


@hookimpl
def kvrescue_trajectory_finished(event: TrajectoryFinished) -> None:
    solution = event.solution
    write_evictions(event)
    write("finished", event, stop=solution.stop, answer=solution.answer, steps=len(solution.steps))


@hookimpl
def kvrescue_eviction_fired(event: EvictionFired) -> None:
    _evictions[event.question_id, event.seed, event.proposer] += 1


def write_evictions(event: StepCommitted | TrajectoryFinished) -> None:
    """One line per proposer: evictions since the last step, those of lost candidates included."""
    for key in [key for key in _evictions if key[:2] == (event.question_id, event.seed)]:
        write("evictions", event, proposer=key[2], fired=_evictions.pop(key))

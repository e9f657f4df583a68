"""An observer that draws which tokens each head keeps: one HTML page per trajectory.

    kvrescue solve --plugin examples/kept_tokens.py "$(kvrescue problem)"

The pages go to the folder that KVRESCUE_KEPT names, `kept_tokens` by default. Every picture is a
cache after a step was read: a row per layer and KV head, a column per token, in the colour of the
step that it belongs to; what is light was dropped. In Python, `kvrescue.register` takes this
module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kvrescue import EvictionFired, StepCommitted, TrajectoryFinished, TrajectoryStarted, hookimpl

ROW = 7
"""Pixels per head."""

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
       color: #1c2430; background: #fff }
h1 { font-size: 1.2rem } h2 { font-size: 1rem; margin: 2rem 0 .5rem }
figure { margin: 0 0 1.1rem } figcaption { display: flex; gap: 1rem; white-space: nowrap }
figcaption span { overflow: hidden; text-overflow: ellipsis } figcaption b { font-weight: 600 }
figcaption small { margin-left: auto; color: #5b6675; font-variant-numeric: tabular-nums }
svg { display: block; width: 100%; background: #f6f7f9; border-radius: 3px }
.legend { position: sticky; top: 0; padding: .4rem 0; background: #fff }
"""


@dataclass
class Snapshot:
    """A cache after it read the prompt or a step."""

    step: int
    """-1: the prompt."""
    length: int
    kept: Any
    """[layers, kv_heads, entries] positions."""


@dataclass
class Cache:
    """One proposer's view of one trajectory."""

    snapshots: list[Snapshot] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Tokens up to the end of the prompt, of step 0, of step 1, ..."""


@dataclass
class Trajectory:
    caches: dict[str, Cache] = field(default_factory=dict)

    def cache(self, name: str) -> Cache:
        return self.caches.setdefault(name, Cache())


_open: dict[tuple[str, int | None], Trajectory] = {}


def trajectory(event: Any) -> Trajectory:
    return _open.setdefault((event.question_id, event.seed), Trajectory())


@hookimpl
def kvrescue_eviction_fired(event: EvictionFired) -> None:
    if event.when == "decode":
        return  # a candidate's fork, which may never be chosen
    step = -1 if event.when == "prompt" else event.step
    # Positions can be read now and not later: the cache moves on.
    snapshot = Snapshot(step, event.logical_length, event.positions())
    trajectory(event).cache(event.proposer).snapshots.append(snapshot)


@hookimpl
def kvrescue_trajectory_started(event: TrajectoryStarted) -> None:
    for name, stats in event.caches.items():
        trajectory(event).cache(name).ends = [stats.logical_length]


@hookimpl
def kvrescue_step_committed(event: StepCommitted) -> None:
    for name, stats in event.caches.items():
        trajectory(event).cache(name).ends.append(stats.logical_length)


@hookimpl
def kvrescue_trajectory_finished(event: TrajectoryFinished) -> None:
    found = _open.pop((event.question_id, event.seed), Trajectory())
    folder = Path(os.environ.get("KVRESCUE_KEPT", "kept_tokens"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{quote(event.question_id, safe='')}-{event.seed}.html"
    path.write_text("".join(page(event, found)), encoding="utf-8")


def page(event: TrajectoryFinished, found: Trajectory) -> Iterator[str]:
    question = event.solution.question
    yield f"<!doctype html><meta charset=utf-8><title>Kept tokens</title><style>{STYLE}</style>"
    yield f"<h1>Which tokens each head keeps</h1><p>{escape(question.text)}</p>"
    evicted = {name: cache for name, cache in found.caches.items() if cache.snapshots}
    if not evicted:
        yield "<p>No eviction was told: nothing was evicted, or by an engine that does not tell."
    for name, cache in evicted.items():
        yield f"<h2>{escape(name)}</h2>"
        yield legend(cache)
        for snapshot in cache.snapshots:
            step = None if snapshot.step < 0 else event.solution.steps[snapshot.step]
            label = "prompt" if step is None else f"step {step.number + 1}"
            said = "" if step is None else f"{step.candidate.policy}: {step.text.strip()}"
            yield f"<figure><figcaption><b>{label}</b><span>{escape(said)}</span>"
            yield f"<small>{summary(snapshot)}</small></figcaption>"
            yield drawing(cache, snapshot) + "</figure>"


def summary(snapshot: Snapshot) -> str:
    heads = [set(row) for layer in snapshot.kept.tolist() for row in layer]
    common = len(set.intersection(*heads))
    return f"{len(heads[0])} of {snapshot.length} tokens, {common} of them in every head"


def drawing(cache: Cache, snapshot: Snapshot) -> str:
    """A picture as wide as the longest cache, so that columns stand below one another."""
    width = max(taken.length for taken in cache.snapshots)
    rows = [(layer, head) for layer, head, _ in _heads(snapshot)]
    parts = [f'<rect width="{snapshot.length}" height="{len(rows) * ROW}" fill="#e3e7ec"/>']
    for number, (layer, head, kept) in enumerate(_heads(snapshot)):
        y = number * ROW + (layer > 0 and head == 0)  # a line between layers
        parts.append(f"<g><title>layer {layer}, KV head {head}</title>")
        for part, start, stop in runs(kept, cache.ends):
            parts.append(
                f'<rect x="{start}" y="{y}" width="{stop - start}" height="{ROW - 1}" '
                f'fill="{colour(part, len(cache.ends))}"/>'
            )
        parts.append("</g>")
    return (
        f'<svg viewBox="0 0 {width} {len(rows) * ROW}" height="{len(rows) * ROW}" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges">{"".join(parts)}</svg>'
    )


def legend(cache: Cache) -> str:
    """What the columns are: the prompt and the steps."""
    width = max(taken.length for taken in cache.snapshots)
    parts, start = [], 0
    for part, end in enumerate(cache.ends):
        stop = min(end, width)
        if stop > start:
            name = f"step {part}" if part else "prompt"
            parts.append(
                f'<rect x="{start}" width="{stop - start}" height="14" '
                f'fill="{colour(part, len(cache.ends))}"><title>{name}: tokens {start} to '
                f"{stop - 1}</title></rect>"
            )
        start = stop
    return (
        f'<div class=legend><svg viewBox="0 0 {width} 14" height="14" preserveAspectRatio="none" '
        f'shape-rendering="crispEdges">{"".join(parts)}</svg>'
        "<small>Colours: the prompt, then step after step; light: dropped.</small></div>"
    )


def runs(kept: list[int], ends: list[int]) -> Iterator[tuple[int, int, int]]:
    """(part, start, stop) of neighbours that are kept and belong to the same step."""
    part, start, stop = 0, -1, -1
    for position in kept:
        here = next((i for i, end in enumerate(ends) if position < end), len(ends))
        if start >= 0 and (here, position) == (part, stop):
            stop += 1
            continue
        if start >= 0:
            yield part, start, stop
        part, start, stop = here, position, position + 1
    if start >= 0:
        yield part, start, stop


def colour(part: int, parts: int) -> str:
    """Slate for the prompt; steps from blue to red."""
    if part == 0:
        return "#53627a"
    return f"hsl({215 + 145 * (part - 1) / max(1, parts - 1):.0f} 72% {52 - 8 * (part % 2)}%)"


def _heads(snapshot: Snapshot) -> Iterator[tuple[int, int, list[int]]]:
    for layer, heads in enumerate(snapshot.kept.tolist()):
        for head, kept in enumerate(heads):
            yield layer, head, kept

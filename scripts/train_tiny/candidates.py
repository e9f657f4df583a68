"""Hard examples for the PRM: what the models themselves propose along right histories.

That is where the PRM is used: as long as selection works, the history is right, and the candidates
are samples. They come from the evicted base; the PRM never sees the helper. The exact checker
labels them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import Qwen2ForCausalLM

from kvrescue.evaluation.bill import Bill
from kvrescue.evictors.base import Evictor
from scripts.train_tiny.batches import Encoder
from scripts.train_tiny.recipes import MAX_STEP_TOKENS
from scripts.train_tiny.sampling import Decoder, Rows
from scripts.train_tiny.tokenizer import END_OF_TEXT_ID, SEPARATOR_ID

STEP_STOPS = (SEPARATOR_ID, END_OF_TEXT_ID)


@dataclass(frozen=True)
class Source:
    """One proposer of candidates."""

    model: Qwen2ForCausalLM
    evictor: Evictor | None = None


def sample_along_solution(
    source: Source,
    problems: list[Bill],
    encoder: Encoder,
    candidates: int,
    temperature: float,
    seed: int,
) -> list[list[set[tuple[int, ...]]]]:
    """Distinct candidates (token ids without stop) per problem and per step of its solution."""
    generator = torch.Generator().manual_seed(seed)
    solutions = [[encoder.text(step) for step in bill.steps] for bill in problems]
    prompts = [encoder.prompt(bill) for bill in problems]
    rows = Rows.open(Decoder.of(source.model), prompts, room=140, evictor=source.evictor)
    found: list[list[set[tuple[int, ...]]]] = [[] for _ in problems]
    for position in range(max(map(len, solutions))):
        open_rows = [row for row, steps in enumerate(solutions) if position < len(steps)]
        parents = torch.tensor(open_rows).repeat_interleave(candidates)
        fork = rows.fork(parents, room=MAX_STEP_TOKENS + 1)
        drawn = fork.sample(STEP_STOPS, MAX_STEP_TOKENS, temperature, generator)
        for number, row in enumerate(open_rows):
            mine = drawn[number * candidates : (number + 1) * candidates]
            found[row].append({without_stop(tokens) for tokens in mine})
        rows.commit(
            [
                [*steps[position], SEPARATOR_ID] if position < len(steps) - 1 else []
                for steps in solutions
            ]
        )
    return found


def sample_candidates(
    sources: Sequence[Source],
    problems: list[Bill],
    encoder: Encoder,
    seed: int,
    candidates: int = 8,
    batch: int = 40,
) -> list[list[set[tuple[int, ...]]]]:
    """The union over all sources; every second batch is drawn hotter, for variety."""
    found: list[list[set[tuple[int, ...]]]] = []
    for start in range(0, len(problems), batch):
        part = problems[start : start + batch]
        temperature = 0.8 if (start // batch) % 2 == 0 else 1.0
        union: list[list[set[tuple[int, ...]]]] = [[set() for _ in bill.steps] for bill in part]
        for number, source in enumerate(sources):
            run_seed = seed + 1000 * start + number
            drawn = sample_along_solution(source, part, encoder, candidates, temperature, run_seed)
            for mine, theirs in zip(union, drawn, strict=True):
                for step, more in zip(mine, theirs, strict=True):
                    step |= more
        found += union
    return found


def without_stop(tokens: list[int]) -> tuple[int, ...]:
    """A step as the PRM reads it: without separator and end of text."""
    return tuple(token for token in tokens if token not in STEP_STOPS)

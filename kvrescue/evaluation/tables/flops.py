"""FLOPs of a record, by Appendix D of the paper, with the verifier counted.

    proposer   2 P per token read or generated, 4 L d per cache entry attended to; an evicted cache
               costs alpha attention passes more (Eq. 13), divided by the evictor's interval, once
               it has outgrown its bound. The prompt is one causal pass.
    verifier   2 P per token of the candidates it had to compare, attention to the prompt and, on
               average, half of the solution; the prompt once. Its cache is kept from step to step.

Entries attended to are counted by the record, so only the verifier's attention is an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvrescue.config import RescueConfig
from kvrescue.cost import ALPHA
from kvrescue.errors import KVRescueError
from kvrescue.evaluation.runs.record import Record, Use
from kvrescue.evaluation.tables.accuracy import budget_of
from kvrescue.evaluation.tables.cells import LABELS, Cell, Cells, Measure
from kvrescue.evaluation.tables.table import INTERVAL, Column, Table, Value
from kvrescue.shapes import ModelShape, shape_of

__all__ = [
    "VERIFIER",
    "Models",
    "Prices",
    "flops",
    "flops_table",
    "models_of",
    "proposer_flops",
    "verifier_flops",
]

VERIFIER: Final = "verifier"


@dataclass(frozen=True)
class Models:
    """Shapes of a configuration's models; None where one cannot be known."""

    proposers: Mapping[str, ModelShape | None]
    verifier: ModelShape | None
    intervals: Mapping[str, int]
    """Tokens between evictions, of proposers with an evictor."""


def models_of(config: RescueConfig) -> Models:
    """Read the shapes from the models' config.json; hub names only of the models that are known."""
    policies = {name: section.policy for name, section in config.proposers.items()}
    evictors = {name: getattr(policy, "evictor", None) for name, policy in policies.items()}
    return Models(
        proposers={name: _shape(policy) for name, policy in policies.items()},
        verifier=_shape(config.scorer),
        intervals={
            name: max(1, getattr(evictor, "interval", 1))
            for name, evictor in evictors.items()
            if evictor is not None
        },
    )


def _shape(spec: object) -> ModelShape | None:
    model = getattr(spec, "model", None)
    if not isinstance(model, str):
        return None
    try:
        return shape_of(model)
    except KVRescueError:
        return None


def proposer_flops(
    shape: ModelShape, use: Use, *, alpha: float = ALPHA, interval: int = 1
) -> float:
    """FLOPs of one proposer's work on one problem.

    Args:
        shape: of its model.
        use: what it did.
        alpha: cost of one eviction, in attention passes over the bounded cache (Eq. 13).
        interval: tokens between evictions.
    """
    dense = use.prompt + use.generated + use.encoded
    attended = float(use.attended)
    if use.bound is not None and use.evictions > 0:
        attended *= 1 + alpha / interval
    return _cost(shape, dense, attended + _causal(use.prompt))


def verifier_flops(shape: ModelShape, record: Record) -> float:
    """FLOPs of the scorer's work on one problem; 0 where it had nothing to compare."""
    if not record.scored_tokens:
        return 0.0
    prompt = max((use.prompt for use in record.uses.values()), default=0)
    context = prompt + record.output_tokens / 2
    attended = record.scored_tokens * context + _causal(prompt)
    return _cost(shape, prompt + record.scored_tokens, attended)


def _causal(prompt: int) -> float:
    """Entries that a prompt's tokens attend to in one pass."""
    return prompt * (prompt + 1) / 2


def _cost(shape: ModelShape, tokens: int, attended: float) -> float:
    """Eq. 12, summed over tokens."""
    return shape.dense_flops * tokens + shape.attention_flops(1) * attended


def flops(record: Record, models: Models, alpha: float = ALPHA) -> dict[str, float] | None:
    """FLOPs of one problem by proposer, and of the verifier; None where a shape is missing."""
    parts = {}
    for name, use in record.uses.items():
        shape = models.proposers.get(name)
        if shape is None:
            return None
        interval = models.intervals.get(name, 1)
        parts[name] = proposer_flops(shape, use, alpha=alpha, interval=interval)
    if not record.scored_tokens:
        parts[VERIFIER] = 0.0
    elif models.verifier is None:
        return None
    else:
        parts[VERIFIER] = verifier_flops(models.verifier, record)
    return parts


class Prices:
    """FLOPs of every row of a run, worked out once.

    Args:
        cells: of the run.
        alpha: see `proposer_flops`.
    """

    def __init__(self, cells: Cells, alpha: float = ALPHA) -> None:
        self.alpha = alpha
        self._parts: dict[int, dict[str, float]] = {}
        for cell in cells:
            models = models_of(cell.config)
            for record in cell.rows:
                parts = flops(record, models, alpha)
                if parts is not None:
                    self._parts[id(record)] = parts
        self._cells = cells  # keeps the records, hence their identities, alive

    def of(self, cell: Cell | None, part: str | None = None) -> Measure | None:
        """FLOPs of a row: of one proposer, of the verifier, or (None) of all together.

        None where a cell has no rows or a model's shape is not known.
        """
        if cell is None or not cell.rows or any(id(row) not in self._parts for row in cell.rows):
            return None
        if part is None:
            return lambda record: sum(self._parts[id(record)].values())
        return lambda record: self._parts[id(record)].get(part, 0.0)


def flops_table(cells: Cells, prices: Prices) -> Table:
    """Mean FLOPs per problem of every cell, by model."""
    rows: list[tuple[Value, ...]] = []
    for cell in cells:
        parts = [*("base", "helper"), VERIFIER, None]
        measures = [prices.of(cell, part) for part in parts]
        means = [None if measure is None else cell.mean(measure) for measure in measures]
        shown = [
            None if part in ("base", "helper") and part not in cell.config.proposers else mean
            for part, mean in zip(parts, means, strict=True)
        ]
        rows.append((cell.n, LABELS[cell.method], budget_of(cell), *shown))
    return Table(
        name="flops",
        title="Compute per problem",
        columns=(
            Column("n", "N", "count"),
            Column("method", "Method"),
            Column("budget", "Budget", "count"),
            Column("base", "Base (FLOPs)", "flops"),
            Column("helper", "Helper (FLOPs)", "flops"),
            Column("verifier", "Verifier (FLOPs)", "flops"),
            Column("total", "Total (FLOPs)", "flops", INTERVAL),
        ),
        rows=tuple(rows),
        note=(
            "Means per problem by Appendix D: 2 P FLOPs per token read or generated, 4 L d per "
            f"cache entry attended to, and alpha = {prices.alpha:g} attention passes for an "
            "eviction. The verifier reads the candidates that it has to compare, its cache kept "
            "from step to step; its attention is estimated at the prompt and half of the "
            "solution. Prompts are counted once for each model. - where a model's shape is not "
            "known."
        ),
    )

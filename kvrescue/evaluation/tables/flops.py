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
    "flops",
    "flops_table",
    "models_of",
    "proposer_flops",
    "total_flops",
]

VERIFIER: Final = "verifier"


@dataclass(frozen=True)
class Models:
    """Shapes of a configuration's models; None where one cannot be known."""

    proposers: Mapping[str, ModelShape | None]
    verifier: ModelShape | None
    intervals: Mapping[str, int]
    """Tokens between evictions, of proposers with an evictor."""

    @property
    def unknown(self) -> list[str]:
        """Proposers without a shape."""
        return [name for name, shape in self.proposers.items() if shape is None]


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
    dense = shape.dense_flops * (use.prompt + use.generated + use.encoded)
    attention = float(shape.attention_flops(use.attended))
    if use.bound is not None and use.evictions > 0:
        attention *= 1 + alpha / interval
    return dense + attention + _prompt_attention(shape, use.prompt)


def verifier_flops(shape: ModelShape, record: Record) -> float:
    """FLOPs of the scorer's work on one problem; 0 where it had nothing to compare."""
    if not record.scored_tokens:
        return 0.0
    prompt = max((use.prompt for use in record.uses.values()), default=0)
    context = prompt + record.output_tokens // 2
    dense = shape.dense_flops * (prompt + record.scored_tokens)
    attention = shape.attention_flops(record.scored_tokens * context)
    return float(dense + attention + _prompt_attention(shape, prompt))


def _prompt_attention(shape: ModelShape, prompt: int) -> int:
    return shape.attention_flops(prompt * (prompt + 1) // 2)


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


def total_flops(cell: Cell | None, alpha: float = ALPHA) -> Measure | None:
    """FLOPs of a row of a cell, all models together; None where a shape is missing."""
    return None if cell is None else part_flops(cell, None, alpha)


def part_flops(cell: Cell, part: str | None, alpha: float = ALPHA) -> Measure | None:
    """The same for one proposer or the verifier (None: all)."""
    models = models_of(cell.config)
    if any(flops(record, models, alpha) is None for record in cell.rows):
        return None

    def measure(record: Record) -> float:
        parts = flops(record, models, alpha) or {}
        return sum(parts.values()) if part is None else parts.get(part, 0.0)

    return measure


def flops_table(cells: Cells, alpha: float = ALPHA) -> Table:
    """Mean FLOPs per problem of every cell, by model."""
    rows: list[tuple[Value, ...]] = []
    for cell in cells:
        parts = [*("base", "helper"), VERIFIER, None]
        measures = [part_flops(cell, part, alpha) if cell.rows else None for part in parts]
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
            f"cache entry attended to, and alpha = {alpha:g} attention passes for an eviction. "
            "The verifier reads the candidates that it has to compare, its cache kept from step "
            "to step; its attention is estimated at the prompt and half of the solution. Prompts "
            "are counted once for each model. - where a model's shape is not known."
        ),
    )

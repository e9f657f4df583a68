"""The columns of the report: the settings of its runs, and the traces given beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import BaseModel

from kvrescue.config import RescueConfig
from kvrescue.evaluation.methods import EVICTED, Method
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.trajectories.trace import Caps

__all__ = ["Column", "of_run", "of_trace", "with_baselines", "with_labels"]

_NAMES: Final[dict[Method, str]] = {
    "full_kv": "full KV",
    "helper": "helper",
    "best_of_n": "evicted best of N",
    "interleaved": "interleaved",
    "kv_rescue": "KV-Rescue",
}


@dataclass(frozen=True)
class Column:
    """One setting of one source, as the page shows it."""

    source: int
    """Position of its run or trace in the report."""
    key: str
    """Of the setting; within its source."""
    facts: dict[str, str]
    """Its parts by name, in the order of a label."""
    proposers: tuple[str, ...] = ()
    caps: Caps = field(default_factory=Caps)
    about: tuple[str, ...] = ()
    """What it consists of, one line each."""
    setting: Setting | None = None
    """None for a trace."""
    label: str = ""
    short: str = ""
    """Of the label what tells it from the other columns."""
    baseline: int | None = None
    """Position of the column that evicts alike and repairs nothing."""

    def data(self, identity: str) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "id": identity,
            "source": self.source,
            "label": self.label,
            "short": self.short,
            "method": None if self.setting is None else self.setting.method,
            "proposers": list(self.proposers),
            "about": list(self.about),
            "baseline": self.baseline,
        }


def of_run(source: int, setting: Setting) -> Column:
    """The column of a run's setting."""
    facts = {"method": _NAMES[setting.method]}
    if setting.budget is not None:
        facts["budget"] = f"budget {setting.budget}"
    facts |= {"n": f"N {setting.n}", "seed": f"seed {setting.seed}"}
    config = setting.config
    about = tuple(_about(config))
    return Column(
        source, setting.key, facts, tuple(config.proposers), Caps.of(config), about, setting
    )


def of_trace(source: int, seed: int, take: int) -> Column:
    """The column of a trace's trajectories.

    Args:
        source: position of the file.
        seed: of the trajectories.
        take: how many trajectories of the same question and seed stand before it in the file.
    """
    facts = {"method": "trace", "seed": f"seed {seed}"}
    if take:
        facts["take"] = f"again ({take + 1})"
    return Column(source, f"seed-{seed}" + (f"-{take + 1}" if take else ""), facts)


def with_baselines(columns: Sequence[Column]) -> list[Column]:
    """The columns, each with the one that evicts alike and repairs nothing."""
    places = {
        _evicts_like(column): place
        for place, column in enumerate(columns)
        if column.setting is not None and column.setting.method == "best_of_n"
    }
    return [
        replace(column, baseline=places.get(_evicts_like(column)))
        if column.setting is not None and column.setting.method in ("interleaved", "kv_rescue")
        else column
        for column in columns
    ]


def _evicts_like(column: Column) -> tuple[object, ...]:
    setting = column.setting
    if setting is None or setting.method not in EVICTED:
        return ()
    base = setting.config.proposers["base"].policy.model_dump_json()
    return column.source, base, setting.n, setting.seed


def with_labels(columns: Sequence[Column], sources: Sequence[str]) -> list[Column]:
    """The columns with labels; the short ones leave out what all have in common."""
    kinds = list(dict.fromkeys(kind for column in columns for kind in column.facts))
    varying = [
        kind for kind in kinds if len({column.facts.get(kind) for column in columns}) > 1
    ] or kinds[:1]
    several = len({column.source for column in columns}) > 1
    labelled = []
    for column in columns:
        name = [sources[column.source]] if several or column.setting is None else []
        full = [column.facts[kind] for kind in kinds if kind in column.facts]
        brief = [column.facts[kind] for kind in varying if kind in column.facts]
        labelled.append(
            replace(
                column,
                label=" · ".join([*name, *full]),
                short=" · ".join([*(name if several else []), *brief]),
            )
        )
    return _told_apart(labelled)


def _told_apart(columns: list[Column]) -> list[Column]:
    """Where labels are equal, the hash of the configuration tells."""
    labels = Counter(column.label for column in columns)
    shorts = Counter(column.short for column in columns)
    return [
        replace(
            column,
            label=column.label + (f" · {column.key[-6:]}" if labels[column.label] > 1 else ""),
            short=column.short + (f" · {column.key[-6:]}" if shorts[column.short] > 1 else ""),
        )
        for column in columns
    ]


def _about(config: RescueConfig) -> list[str]:
    lines = []
    for name, proposer in config.proposers.items():
        lines.append(f"{name}: {proposer.candidates} of {_options(proposer.policy)}")
        evictor = getattr(proposer.policy, "evictor", None)
        if isinstance(evictor, BaseModel):
            lines.append(f"{name} evicts: {_options(evictor)}")
        lines += [f"{name} is screened by {_options(part)}" for part in proposer.detectors]
    limits = config.limits.model_dump(exclude_none=True)
    lines.append(f"scorer: {_options(config.scorer)}")
    lines.append("sampling: " + _listed(config.sampling.model_dump()))
    lines.append("limits: " + _listed(limits))
    return lines


def _options(part: BaseModel) -> str:
    """A component by its kind and its plain options."""
    kind = str(getattr(part, "kind", type(part).__name__))
    options = {
        name: value
        for name, value in part.model_dump(mode="json").items()
        if name != "kind" and isinstance(value, str | int | float) and value != ""
    }
    return f"{kind} ({_listed(options)})" if options else kind


def _listed(options: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value!r}" if value != str(value) else f"{name} {value}"
        for name, value in options.items()
    )

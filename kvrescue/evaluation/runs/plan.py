"""Plans: which settings a run is made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvrescue.config import ConfigSource, RescueConfig, load_config
from kvrescue.engines import Engine
from kvrescue.errors import ConfigError, UnknownNameError, nearest
from kvrescue.evaluation.methods import (
    BASE,
    HELPER,
    METHODS,
    Method,
    evictor_of,
    require_proposers,
)
from kvrescue.evaluation.problems import ProblemSet
from kvrescue.evaluation.runs.settings import Setting, composition_of, distinct, setting_of
from kvrescue.faults import whole_number
from kvrescue.overrides import assigned
from kvrescue.sampling import MOST_CANDIDATES

__all__ = ["BenchPlan", "configs_by_budget"]

_BUDGET_KEYS: Final = ["proposers", BASE, "policy", "evictor", "budget"]


@dataclass(frozen=True)
class BenchPlan:
    """Methods x budgets x N x seeds over a problem set.

    Raises:
        ConfigError: nothing to run, or a number out of range.
        UnknownNameError: an unknown method.
    """

    problems: ProblemSet
    configs: Mapping[int, RescueConfig]
    """KV-Rescue's configuration by budget, see `configs_by_budget`."""
    methods: tuple[Method, ...] = METHODS
    ns: tuple[int, ...] = (1, 8)
    """Candidates of each proposer in a step."""
    seeds: tuple[int, ...] = (0,)
    """Of the samples; the problems are the same for all."""
    matched: bool = True
    """Also run evicted base and helper with 2N candidates: as many as KV-Rescue draws in all."""

    def __post_init__(self) -> None:
        if not self.problems:
            raise ConfigError("problems: there is none")
        for name in ("configs", "methods", "ns", "seeds"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: name at least one")
        if len({composition_of(config) for config in self.configs.values()}) > 1:
            raise ConfigError("configs: they differ in more than the budget; run them one by one")
        for method in self.methods:
            if method not in METHODS:
                raise UnknownNameError(f"unknown method {method!r}{nearest(method, METHODS)}")
        for n in self.ns:
            # Matched settings draw 2N.
            most = MOST_CANDIDATES // 2 if self.matched else MOST_CANDIDATES
            whole_number("n", n, 1, most)
        for seed in self.seeds:
            whole_number("seed", seed)

    @property
    def composition(self) -> str:
        """What all settings are methods of, see `composition_of`."""
        return composition_of(next(iter(self.configs.values())))

    @property
    def settings(self) -> list[Setting]:
        """Every setting once: those that share models side by side, large ones first."""
        found: list[Setting] = []
        for budget, config in sorted(self.configs.items()):
            for seed in self.seeds:
                for method, n in self._cells():
                    found.append(setting_of(config, method, n, budget, seed))
        return sorted(distinct(found), key=lambda setting: (setting.budget or 0, -setting.weight))

    def _cells(self) -> Iterable[tuple[Method, int]]:
        for n in self.ns:
            for method in self.methods:
                yield method, n
                if self.matched and method in ("best_of_n", HELPER):
                    yield method, 2 * n


def configs_by_budget(
    source: ConfigSource,
    budgets: Sequence[int],
    overrides: Iterable[str] = (),
    *,
    engine: Engine | None = None,
    problems: ProblemSet | None = None,
) -> dict[int, RescueConfig]:
    """KV-Rescue's configuration at each budget.

    Args:
        source: with proposers `base` (evicted, screened) and `helper`, see `load_config`.
        budgets: of the evictor; none means the one that is configured.
        overrides: see `load_config`.
        engine: see `load_config`.
        problems: whose system prompt is given to models that are configured without one.

    Raises:
        ConfigError: a budget or the configuration makes no sense.
    """
    overrides = list(overrides)
    _refuse_overruled(overrides, budgets)
    plain = load_config(source, overrides, engine=engine)
    require_proposers(plain)
    wanted = [whole_number("budget", budget, least=1) for budget in budgets]
    prompts = [] if problems is None else list(_prompts(plain, problems))
    configs = {}
    for budget in sorted(set(wanted)) or [evictor_of(plain).budget]:
        changes = (*overrides, *prompts, f"{'.'.join(_BUDGET_KEYS)}={budget}")
        configs[budget] = load_config(source, changes, engine=engine)
        evictor_of(configs[budget])
    return configs


def _refuse_overruled(overrides: Iterable[str], budgets: Sequence[int]) -> None:
    """A value that a plan sets itself would be lost without a word."""
    for override in overrides:
        keys, _ = assigned(override)
        match keys:
            case ["seed"] | ["proposers", _, "candidates"]:
                raise ConfigError(
                    f"override {override!r}: N and seeds are set for every setting (-n, --seed)"
                )
        if budgets and keys == _BUDGET_KEYS:
            raise ConfigError(
                f"override {override!r}: the budgets {list(budgets)} are asked for; name it there"
            )


def _prompts(config: RescueConfig, problems: ProblemSet) -> Iterable[str]:
    if problems.system is None:
        return
    sections: dict[str, Any] = {
        f"proposers.{name}.policy": section.policy for name, section in config.proposers.items()
    }
    sections["scorer"] = config.scorer
    for path, section in sections.items():
        if "system" in type(section).model_fields and section.system is None:
            yield f"{path}.system={json.dumps(problems.system)}"

"""Settings: the cells of the tables, each a resolved configuration with its key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kvrescue.config import RescueConfig, config_hash, load_config
from kvrescue.evaluation.methods import BASE, EVICTED, Method, compose, evictor_of

__all__ = ["Setting", "composition_of", "distinct", "setting_of"]


@dataclass(frozen=True)
class Setting:
    """One method at one budget, N and seed."""

    method: Method
    n: int
    """Candidates of each proposer in a step."""
    budget: int | None
    """None where nothing is evicted."""
    seed: int
    """Of the samples."""
    config: RescueConfig
    """Composed and complete; `seed` included."""
    written_as: str | None = field(default=None, compare=False)
    """The key under which a run holds it: a version that knows other options has other keys."""

    @cached_property
    def key(self) -> str:
        """Readable, and changes with every option that may change a result."""
        if self.written_as is not None:
            return self.written_as
        budget = "full" if self.budget is None else f"b{self.budget}"
        return f"{self.method}-{budget}-n{self.n}-s{self.seed}-{config_hash(self.config)}"

    @property
    def weight(self) -> int:
        """What a problem costs, roughly, in candidates per step."""
        return self.n * len(self.config.proposers)

    def data(self) -> dict[str, Any]:
        """As plain JSON data; `from_data` reads it back."""
        return {
            "key": self.key,
            "method": self.method,
            "n": self.n,
            "budget": self.budget,
            "seed": self.seed,
            "config": self.config.model_dump(mode="json"),
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Setting:
        config = load_config(data["config"])
        key = data["key"]
        return cls(data["method"], data["n"], data["budget"], data["seed"], config, key)


def setting_of(config: RescueConfig, method: Method, n: int, budget: int, seed: int) -> Setting:
    """The setting of a method.

    Args:
        config: KV-Rescue's, at this budget.
        method: which composition of its parts is meant.
        n: candidates of each proposer in a step.
        budget: the evictor's; methods without one do not depend on it.
        seed: of the samples.
    """
    composed = compose(config, method, n).model_copy(update={"seed": seed})
    return Setting(method, n, budget if method in EVICTED else None, seed, composed)


def composition_of(config: RescueConfig) -> str:
    """16 hex digits that KV-Rescue's configurations have in common whatever budget, N and seed.

    Settings are comparable when they are methods of one composition. It is not told by a setting
    itself: best-of-N is the same run whatever the detectors of KV-Rescue.

    Raises:
        ConfigError: the base has no evictor.
    """
    parts = {
        name: section.model_copy(update={"candidates": 1})
        for name, section in config.proposers.items()
    }
    evictor = evictor_of(config).model_copy(update={"budget": 1})
    policy = parts[BASE].policy.model_copy(update={"evictor": evictor})
    parts[BASE] = parts[BASE].model_copy(update={"policy": policy})
    return config_hash(config.model_copy(update={"proposers": parts, "seed": 0}))


def distinct(settings: Iterable[Setting]) -> list[Setting]:
    """Without those that are the same run."""
    return list({setting.key: setting for setting in settings}.values())

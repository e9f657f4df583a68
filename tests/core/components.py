"""Registered stand-ins for policies, scorers and evictors, so that configurations build here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvrescue import EvictorField, hookimpl
from kvrescue.errors import DetectorError
from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.hookspecs import Register
from kvrescue.plugins import Plugins
from kvrescue.policies.base import PolicySpec
from kvrescue.scorers.base import ScorerSpec
from tests.core.fakes import FakeDetector, FakePolicy, FakeScorer, Habits

if TYPE_CHECKING:
    from torch import Tensor


class Extra(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    depth: int = 1


class FakeEvictor(Evictor):
    kind: ClassVar[str] = "oldest"

    def score(self, kv: KVSlice) -> Tensor:
        raise NotImplementedError


class FakeSpec(PolicySpec):
    kind: ClassVar[str] = "fake"

    model: str
    evictor: EvictorField = None
    words: tuple[str, ...] = ("a\n\n", "b\n\n")
    extra: Extra = Extra()
    extras: dict[str, Extra] = Field(default_factory=dict)
    free: dict[str, Any] = Field(default_factory=dict)

    def build(self) -> FakePolicy:
        return FakePolicy(Habits(words=self.words, eos=0.2))


class FakeScorerSpec(ScorerSpec):
    kind: ClassVar[str] = "fake"

    level: float = 1.0

    def build(self) -> FakeScorer:
        return FakeScorer()


class Picky(FakeDetector):
    kind: ClassVar[str] = "picky"

    @field_validator("level")
    @classmethod
    def _can_fire(cls, level: float) -> float:
        if level > 5:
            raise DetectorError(f"level {level} can never be reached")
        return level


class Components:
    @hookimpl
    def kvrescue_register_policies(self, register: Register) -> None:
        register("fake", FakeSpec)

    @hookimpl
    def kvrescue_register_scorers(self, register: Register) -> None:
        register("fake", FakeScorerSpec)

    @hookimpl
    def kvrescue_register_evictors(self, register: Register) -> None:
        register("oldest", FakeEvictor)

    @hookimpl
    def kvrescue_register_detectors(self, register: Register) -> None:
        register("fake", FakeDetector)
        register("picky", Picky)


def fake_plugins() -> Plugins:
    """An own set of plugins: the built-ins and the stand-ins."""
    known = Plugins()
    known.register(Components())
    return known

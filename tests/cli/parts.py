"""A plugin for tests: policies and scorers without models, so that the command line is quick."""

from __future__ import annotations

from typing import ClassVar

from kvrescue import EvictorField, hookimpl
from kvrescue.hookspecs import Register
from kvrescue.policies.base import Policy, PolicySpec
from kvrescue.scorers.base import Scorer, ScorerSpec
from tests.core.fakes import FakeDetector, FakePolicy, FakeScorer, Habits

ENDLESS = ("a\n\n", "b\n\n", "c d\n\n")


class FakeSpec(PolicySpec):
    kind: ClassVar[str] = "fake"

    flagged: float = 0.0
    eos: float = 0.3
    delay: float = 0.0
    context: int = 4096
    words: tuple[str, ...] | None = None
    broken: bool = False
    evictor: EvictorField = None
    """Without effect; there so that the demo's methods can be composed."""

    def build(self) -> Policy:
        def trouble(where: str) -> None:
            if self.broken and where == "propose":
                raise RuntimeError("the card is on fire")

        habits = Habits(self.flagged, self.eos, self.words or Habits().words)
        return FakePolicy(habits, context=self.context, delay=self.delay, trouble=trouble)


class FakeScorerSpec(ScorerSpec):
    kind: ClassVar[str] = "fake"

    wrong: float | None = None

    def build(self) -> Scorer:
        wrong = self.wrong
        if wrong is None:
            return FakeScorer()
        return FakeScorer(change=lambda scores: [wrong for _ in scores])


@hookimpl
def kvrescue_register_policies(register: Register) -> None:
    register("fake", FakeSpec)


@hookimpl
def kvrescue_register_scorers(register: Register) -> None:
    register("fake", FakeScorerSpec)


@hookimpl
def kvrescue_register_detectors(register: Register) -> None:
    register("fake", FakeDetector)


CONFIG = """\
plugins: [tests.cli.parts]
proposers:
  base:
    policy: {kind: fake, flagged: 0.4}
    candidates: 2
    detectors: [fake]
  helper:
    policy: {kind: fake}
scorer: {kind: fake}
"""

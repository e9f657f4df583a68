"""A plugin: policies and scorers that fail where the question says so, and no models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from lm_eval.api.instance import Instance

import kvrescue
from kvrescue import EvictorField
from kvrescue.config import load_config, resolved_yaml
from kvrescue.errors import PolicyError
from kvrescue.hookspecs import Register
from kvrescue.policies.base import PolicySpec
from kvrescue.scorers.base import Scorer, ScorerSpec
from kvrescue.types import Candidate, Context, Question
from tests.core.fakes import FakePolicy, FakeView, Habits

FAILS = "fails"
DEGRADES = "degrades"
WORDS = ("one two\n\n", "Q: three\n\n", "four. five\n\n")


class Moody(FakePolicy):
    """Its steps depend on the seeds of a question."""

    async def open(self, question: Question, name: str) -> FakeView:
        if FAILS in question.text:
            raise PolicyError("it would not")
        return await super().open(question, name)


class MoodySpec(PolicySpec):
    kind: ClassVar[str] = "moody"

    evictor: EvictorField = None

    def build(self) -> Moody:
        return Moody(Habits(words=WORDS, eos=0.2))


class Judge(Scorer):
    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        if DEGRADES in context.question.text:
            raise ValueError("no opinion")
        return [random.Random(candidate.text).random() for candidate in candidates]


class JudgeSpec(ScorerSpec):
    kind: ClassVar[str] = "moody"

    def build(self) -> Judge:
        return Judge()


@kvrescue.hookimpl
def kvrescue_register_policies(register: Register) -> None:
    register("moody", MoodySpec)


@kvrescue.hookimpl
def kvrescue_register_scorers(register: Register) -> None:
    register("moody", JudgeSpec)


def write_config(folder: Path) -> str:
    """A configuration of these parts, as a file."""
    data = {
        "plugins": [__name__],
        "proposers": {
            "base": {"policy": "moody", "candidates": 2},
            "helper": {"policy": "moody"},
        },
        "scorer": "moody",
        "limits": {"max_output_tokens": 60},
        "on_scorer_error": "degrade",
    }
    path = folder / "moody.yaml"
    path.write_text(resolved_yaml(load_config(data)), encoding="utf-8")
    return str(path)


def request(text: str, doc: int = 0, kind: Any = "generate_until", **kwargs: Any) -> Instance:
    """A request as lm_eval makes them."""
    return Instance(kind, {}, (text, kwargs), 0, ("sums", doc, 1))

"""Wrong scorers: each is caught by the law it breaks."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

import pytest

from kvrescue.errors import ConfigError
from kvrescue.scorers.base import Scorer
from kvrescue.testing import check_scorer
from kvrescue.testing.fakes import FakeScorer, score_of
from kvrescue.types import Candidate, Context
from tests.kit.mutants import caught


class Plain(Scorer):
    """A correct scorer, which the mutants spoil."""

    def __init__(self) -> None:
        self.closed = False

    def one(self, context: Context, candidate: Candidate) -> float:
        return score_of(context.text, candidate.text, 1000)

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return self.change([self.one(context, candidate) for candidate in candidates])

    def change(self, scores: list[float]) -> list[float]:
        return scores


class NotANumber(Plain):
    def change(self, scores: list[float]) -> list[float]:
        return [math.nan if score < 0.3 else score for score in scores]


class TooFew(Plain):
    """Merges equal candidates."""

    def change(self, scores: list[float]) -> list[float]:
        return list(dict.fromkeys(scores))


class TooLarge(Plain):
    def change(self, scores: list[float]) -> list[float]:
        return [1.5 if score > 0.9 else score for score in scores]


class ByPlace(Plain):
    """The first one gets a bonus."""

    def change(self, scores: list[float]) -> list[float]:
        return [score * (0.9 if place else 1.0) for place, score in enumerate(scores)]


class Softmax(Plain):
    """Normalised over the pool."""

    def change(self, scores: list[float]) -> list[float]:
        return [score / sum(scores) for score in scores]


class Dropout(Plain):
    def one(self, context: Context, candidate: Candidate) -> float:
        return super().one(context, candidate) * random.uniform(0.9, 1.0)


class Stale(Plain):
    """Keeps the context of a trajectory's first call."""

    def __init__(self) -> None:
        self.kept: dict[int, Context] = {}

    def one(self, context: Context, candidate: Candidate) -> float:
        return super().one(self.kept.setdefault(context.trajectory, context), candidate)


class Words(Plain):
    """The mean over words, of which a blank step has none."""

    def one(self, context: Context, candidate: Candidate) -> float:
        words = candidate.text.split()
        return sum(score_of("", word, 1000) for word in words) / len(words)


class Spoilt(Plain):
    """A long text fails as it should, and leaves the scorer broken."""

    limit = 1.0

    def one(self, context: Context, candidate: Candidate) -> float:
        if len(candidate.text) > 10_000:
            self.limit = 0.5
        return super().one(context, candidate) * self.limit


class Shared(Plain):
    """Holds the context on itself across an await."""

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        self.context = context
        await asyncio.sleep(0)
        return [self.one(self.context, candidate) for candidate in candidates]


class Cancelled(Plain):
    """What a call holds is lost when it is cancelled."""

    slots = 4

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        if not self.slots:
            raise RuntimeError("no slot left")
        self.slots -= 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.slots += 1
        return await super().score(context, candidates)


class Unreleased(Plain):
    def __init__(self) -> None:
        self.known: set[int] = set()

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        self.known.add(context.trajectory)
        return await super().score(context, candidates)

    async def release(self, context: Context) -> None:
        self.known.remove(context.trajectory)


class ClosedOnce(Plain):
    async def aclose(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class Fails(Plain):
    """Needs a committed step."""

    def one(self, context: Context, candidate: Candidate) -> float:
        return score_of(context.steps[-1].text, candidate.text)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        (NotANumber, "finite"),
        (TooFew, "count"),
        (TooLarge, "unit-interval"),
        (ByPlace, "order"),
        (Softmax, "companions"),
        (Dropout, "deterministic"),
        (Stale, "memory"),
        (Words, "awkward-texts"),
        (Spoilt, "awkward-texts"),
        (Shared, "concurrent"),
        (Cancelled, "cancelled"),
        (Unreleased, "released"),
        (ClosedOnce, "close"),
        (Fails, "runs"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_scorer_that_is_wrong(mutant: type[Plain], law: str) -> None:
    caught(lambda: check_scorer(lambda: mutant(), examples=25), law)


def test_right_ones_pass_and_are_closed_where_the_kit_made_them() -> None:
    made: list[FakeScorer] = []

    async def make() -> FakeScorer:
        made.append(FakeScorer())
        return made[-1]

    check_scorer(make)
    assert made[0].finished
    mine = FakeScorer()
    check_scorer(mine)
    assert not mine.finished
    check_scorer(lambda: Plain())


@pytest.mark.parametrize("wrong", [Plain, "qwen_prm", None, lambda: 3, lambda needed: None])
def test_wrong_usage_is_a_configuration_error(wrong: object) -> None:
    with pytest.raises(ConfigError):
        check_scorer(wrong)  # type: ignore[arg-type]


async def test_a_running_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="from a plain function"):
        check_scorer(FakeScorer())

"""Wrong scorers: each is caught by the law it breaks."""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
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


class ByText(Plain):
    """A cache of scores that forgets which context they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, float] = {}

    def one(self, context: Context, candidate: Candidate) -> float:
        return self.known.setdefault(candidate.text, super().one(context, candidate))


asked: list[int] = []


class WearsOut(Plain):
    """After forty candidates, of whatever scorer, all scores are lower: the module counts."""

    def one(self, context: Context, candidate: Candidate) -> float:
        asked.append(1)
        return super().one(context, candidate) * (0.5 if len(asked) > 40 else 1.0)


class FirstOfAll(Plain):
    """What the first scorer was asked first decides for those after it."""

    bias: ClassVar[dict[type, float]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.mine = self.bias.get(type(self), 1.0)

    def one(self, context: Context, candidate: Candidate) -> float:
        self.bias[type(self)] = 0.5
        return super().one(context, candidate) * self.mine


class NeverReleases(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[int, int], str] = {}

    def one(self, context: Context, candidate: Candidate) -> float:
        self.kept[context.trajectory, len(context.steps)] = context.text
        return super().one(context, candidate)


class InTheClass(Plain):
    """The same, kept by the class."""

    kept: ClassVar[list[Context]] = []

    def one(self, context: Context, candidate: Candidate) -> float:
        self.kept.append(context)
        return super().one(context, candidate)


class Tokens(Plain):
    """The mean of the entropies, which is no probability."""

    def one(self, context: Context, candidate: Candidate) -> float:
        return sum(candidate.entropies)


class Texts(Plain):
    def change(self, scores: list[float]) -> list[float]:
        return [str(score) for score in scores]  # type: ignore[misc]


class Yields(Plain):
    def change(self, scores: list[float]) -> list[float]:
        return (score for score in scores)  # type: ignore[return-value]


class Pops(Plain):
    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        scores = await super().score(context, candidates)
        candidates.clear()  # type: ignore[attr-defined]
        return scores


class NotAsync(Plain):
    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:  # type: ignore[override]
        return [0.5 for _ in candidates]


class ReleasesAtOnce(Plain):
    def release(self, context: Context) -> None:  # type: ignore[override]
        return None


class Hangs(Plain):
    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        await asyncio.Event().wait()
        return []


class OnlyOne(Plain):
    """A port that is never let go of."""

    taken: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        if self.taken:
            raise OSError("address already in use")
        self.taken.append(1)


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
        (ByText, "memory"),
        (WearsOut, "deterministic"),
        (FirstOfAll, "memory"),
        (NeverReleases, "released"),
        (InTheClass, "released"),
        (Tokens, "unit-interval"),
        (Texts, "count"),
        (Yields, "count"),
        (Pops, "count"),
        (NotAsync, "runs"),
        (ReleasesAtOnce, "runs"),
        (OnlyOne, "close"),
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


def test_a_call_that_does_not_end() -> None:
    found = caught(lambda: check_scorer(lambda: Hangs(), seconds=0.05), "ends")
    assert "`score` had not ended after 0.05 seconds" in found.seen


def test_what_is_no_coroutine_is_told_so() -> None:
    for mutant, name in ((NotAsync, "score"), (ReleasesAtOnce, "release")):
        found = caught(lambda mutant=mutant: check_scorer(lambda: mutant()), "runs")
        assert f"`async def {name}`" in found.expected


class PerToken(Plain):
    """Tokens are counted, and there is one at least; any sequence of numbers will do."""

    def one(self, context: Context, candidate: Candidate) -> float:
        return 1.0 / candidate.n_tokens

    def change(self, scores: list[float]) -> list[float]:
        return np.array(scores, dtype=np.float32)  # type: ignore[return-value]


class Bounded(Plain):
    """Two caches with a bound: of contexts that nobody releases, and of the last calls."""

    def __init__(self) -> None:
        super().__init__()
        self.known: OrderedDict[int, str] = OrderedDict()
        self.last: deque[str] = deque(maxlen=1000)

    def one(self, context: Context, candidate: Candidate) -> float:
        self.known[context.trajectory] = context.text
        if len(self.known) > 64:
            self.known.popitem(last=False)
        self.last.append(f"{len(self.last)} {candidate.text}")
        return super().one(context, candidate)


class ByContext(Plain):
    """A cache of scores that knows everything they depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[str, str, str], float] = {}

    def one(self, context: Context, candidate: Candidate) -> float:
        key = (context.question.text, context.text, candidate.text)
        return self.known.setdefault(key, super().one(context, candidate))


@pytest.mark.parametrize("right", [PerToken, Bounded, ByContext])
def test_others_that_are_right(right: type[Plain]) -> None:
    check_scorer(lambda: right(), examples=4)


class Votes(Plain):
    """The share of candidates that say the same."""

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        texts = [candidate.text for candidate in candidates]
        return [texts.count(text) / len(texts) for text in texts]


def test_a_vote_depends_on_the_pool_and_says_so() -> None:
    check_scorer(lambda: Votes(), relative=True)
    caught(lambda: check_scorer(lambda: Votes()), "companions")
    caught(lambda: check_scorer(lambda: ByPlace(), relative=True), "order")
    caught(lambda: check_scorer(lambda: ByText(), relative=True), "memory")


def test_what_an_instance_was_asked_before_is_all_it_is_compared_with() -> None:
    check_scorer(ByText())


@pytest.mark.parametrize("option", [{"seconds": 0}, {"seconds": "1"}, {"relative": 1}])
def test_wrong_options_are_a_configuration_error(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} = "):
        check_scorer(FakeScorer(), **option)


@pytest.mark.parametrize("wrong", [Plain, "qwen_prm", None, lambda: 3, lambda needed: None])
def test_wrong_usage_is_a_configuration_error(wrong: object) -> None:
    with pytest.raises(ConfigError):
        check_scorer(wrong)  # type: ignore[arg-type]


async def test_a_running_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="from a plain function"):
        check_scorer(FakeScorer())

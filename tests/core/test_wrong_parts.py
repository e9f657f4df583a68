"""What users hand over or raise by mistake: told to its caller, and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvrescue import Rescue
from kvrescue.errors import ConfigError, DetectorError, PolicyError, ScorerError
from kvrescue.rules import Limits
from kvrescue.scorers.base import Scorer
from kvrescue.selector import Proposer
from kvrescue.types import Candidate, Context
from tests.core.fakes import FakePolicy, FakeScorer, Habits

STEADY = Habits(words=("a\n\n", "b\n\n", "c d\n\n"), eos=0.0)


def rescue(scorer: Scorer | None = None, **options: Any) -> Rescue:
    return Rescue(
        [Proposer(FakePolicy(STEADY), 2)],
        scorer or FakeScorer(),
        limits=Limits(max_steps=3),
        **options,
    )


class Raising(Scorer):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_in_a_component_reaches_its_caller_and_leaves_the_loop_alive(
    error: BaseException,
) -> None:
    with rescue(Raising(error)) as broken, rescue() as sound:
        with pytest.raises(type(error)):
            broken.solve("q")
        assert sound.solve("q").steps


def test_a_scorer_that_cancels_itself_has_failed() -> None:
    with (
        rescue(Raising(asyncio.CancelledError())) as broken,
        pytest.raises(ScorerError, match="gave up"),
    ):
        broken.solve("q")
    with rescue(Raising(asyncio.CancelledError()), on_scorer_error="degrade") as going_on:
        assert going_on.solve("q").degradations


class Returning(Scorer):
    def __init__(self, value: Any) -> None:
        self.value = value

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> Any:
        return self.value


@pytest.mark.parametrize("value", [{0: 0.5, 1: 0.5}, {0.5}, "ab"])
def test_what_is_no_list_of_scores(value: object) -> None:
    with rescue(Returning(value)) as broken, pytest.raises(ScorerError, match="expected a list"):
        broken.solve("q")


@pytest.mark.parametrize("seed", ["x", 1.5, float("nan"), True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with rescue() as sound, pytest.raises(ConfigError, match=r"seed = .*whole number"):
        sound.solve("q", seed=seed)
    with pytest.raises(ConfigError, match=r"seed = .*whole number"):
        rescue(seed=seed)


def test_whole_numbers_of_numpy_are_some() -> None:
    with rescue(concurrency=np.int64(2), seed=np.int64(3)) as sound:
        assert sound.solve("q", seed=np.int64(3)).steps == sound.solve("q", seed=3).steps
        assert sound.solve("q").seed == 3
    assert Proposer(FakePolicy(STEADY), np.int64(2)).n == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("concurrency", [-1, 0, True, 1.5, "3"])
def test_concurrency_of_solve_many(concurrency: Any) -> None:
    with rescue() as sound, pytest.raises(ConfigError, match=r"concurrency = .*at least 1"):
        list(sound.solve_many(["a", "b"], concurrency=concurrency))


def test_one_text_is_no_list_of_questions() -> None:
    with rescue() as sound, pytest.raises(ConfigError, match="questions is one text"):
        list(sound.solve_many("hello"))


@pytest.mark.parametrize(
    ("proposers", "scorer", "told"),
    [
        (Proposer(FakePolicy(STEADY)), FakeScorer(), "expected a list of Proposer"),
        ([Proposer(FakePolicy(STEADY))], None, "scorer = None: expected"),
    ],
)
def test_parts_of_a_rescue(proposers: Any, scorer: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Rescue(proposers, scorer)


@pytest.mark.parametrize("value", [True, 0, "bad"])
def test_a_detector_returns_a_verdict_or_none(value: object) -> None:
    from kvrescue.detectors.bank import DetectorBank
    from kvrescue.detectors.base import Detector, DetectorState, TokenEvent

    class State(DetectorState):
        def update(self, event: TokenEvent) -> Any:
            return value

    class Odd(Detector):
        kind = "odd"

        def start(self) -> DetectorState:
            return State()

    with pytest.raises(DetectorError, match="return a Verdict"):
        DetectorBank([Odd()]).update(TokenEvent(1, "a", 0.5))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_live_rows": 0}, "max_live_rows = 0: expected a whole number of at least 1"),
        ({"max_live_rows": True}, "max_live_rows"),
        ({"max_context": 0}, "max_context = 0"),
        ({"template": "bogus"}, "template = 'bogus'"),
        ({"evictor": "rkv"}, "evictor = 'rkv': expected an Evictor"),
    ],
)
def test_arguments_of_a_torch_policy(arguments: dict[str, Any], told: str) -> None:
    from kvrescue.policies import TorchPolicy

    with pytest.raises(ConfigError, match=told):
        TorchPolicy("tiny/base", **arguments)


def test_a_prompt_without_tokens_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvrescue.policies import TorchPolicy
    from kvrescue.questions import as_question

    policy = TorchPolicy("tiny/base")
    monkeypatch.setattr(policy.tokenizer, "chat_template", "")  # shared with later tests
    with pytest.raises(PolicyError, match="no tokens"):
        asyncio.run(policy.open(as_question("q"), "base"))

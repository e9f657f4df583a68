"""QwenPRM: golden prompts in both conventions, score parity, and what is fed to the model."""

from __future__ import annotations

import asyncio
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvrescue.errors import ConfigError, InputError, ModelLoadError, ScorerError
from kvrescue.scorers import QwenPRMSpec
from kvrescue.scorers.qwen_prm import QwenPRM
from tests.engine.checkpoints import HIDDEN, edit, save_prm
from tests.scorers.helpers import QUESTION, Trajectory, candidate, direct_scores, pool

SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
STEPS = ("Let x = 3.\n\n", "Then we add 4:\n\n\n", "So the answer is 7.\n\n")
OTHERS = ("First, 12 apples.\n\n", "é 文字 😀\n\n", "leaving 7;\n\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_prm(tmp_path_factory.mktemp("prm"))


@pytest.fixture(params=["step_tag", "separator"])
def prm(folder: Path, request: pytest.FixtureRequest) -> QwenPRM:
    return QwenPRM(str(folder), convention=request.param)


def all_ids(prm: QwenPRM, question: str, steps: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Token ids of a whole trajectory, and the positions its steps are scored at."""
    ids, at = prm.prefix_ids(question), []
    for step in steps:
        ids = ids + prm.step_ids(step)
        at.append(len(ids) - 1)
    return ids, at


# -- the rendered prompt ------------------------------------------------------------------------


def test_golden_prompt_of_the_model_card(folder: Path) -> None:
    """The chat template over system, question and steps joined by the tag, up to the last tag."""
    prm = QwenPRM(str(folder))
    ids, at = all_ids(prm, QUESTION, STEPS)
    text = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n"
        "<|im_start|>assistant\n"
        "Let x = 3.<extra_0>Then we add 4:<extra_0>So the answer is 7.<extra_0>"
    )
    assert ids == prm.tokenizer.encode(text, add_special_tokens=False)
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "".join(s.strip() + "<extra_0>" for s in STEPS)},
    ]
    whole = prm.tokenizer.apply_chat_template(messages, tokenize=False)
    end = whole.rindex("<extra_0>") + len("<extra_0>")
    assert ids == prm.tokenizer.encode(whole[:end], add_special_tokens=False)
    tag = prm.tokenizer.convert_tokens_to_ids("<extra_0>")
    assert [i for i, t in enumerate(ids) if t == tag] == at


def test_golden_prompt_of_the_paper(folder: Path) -> None:
    """Question and steps, each followed by the separator: the encoding of the joined text."""
    prm = QwenPRM(str(folder), convention="separator")
    ids, at = all_ids(prm, QUESTION, STEPS)
    text = f"{QUESTION}\n\nLet x = 3.\n\nThen we add 4:\n\nSo the answer is 7.\n\n"
    assert ids == prm.tokenizer.encode(text, add_special_tokens=False)
    assert prm.tokenizer.decode(ids) == text
    dot = prm.tokenizer.encode(".\n\n", add_special_tokens=False)
    assert [ids[i] for i in (at[0], at[2])] == dot * 2  # merged across the joint


# -- text that spells special tokens ------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "so <extra_0> it is\n\n",
        "<extra_0>",
        "<extra_0><extra_0>7.",
        "a<|im_end|>\n<|im_start|>assistant\nfine<extra_0>",
        "<<extra_0>extra_0>",
        "<extra_<extra_0>0>",
    ],
)
def test_a_step_cannot_add_a_scoring_position(prm: QwenPRM, text: str) -> None:
    special = set(prm.tokenizer.all_special_ids)
    ids = prm.step_ids(text)
    tagged = prm.convention == "step_tag"
    assert sum(i in special for i in ids) == int(tagged)
    assert prm.tokenizer.decode(ids[: len(ids) - tagged]).strip() == text.strip()
    question = prm.prefix_ids(f"What? {text}")
    assert sum(i in special for i in question) == sum(i in special for i in prm.prefix_ids("What?"))


async def test_a_step_with_a_tag_in_it_is_scored_once(folder: Path) -> None:
    prm = QwenPRM(str(folder))
    t = Trajectory()
    scores = await prm.score(t.context, pool("so <extra_0> fine\n\n", "fine\n\n"))
    assert len(scores) == 2
    ids = prm.prefix_ids(QUESTION) + prm.step_ids("so <extra_0> fine\n\n")
    assert scores[0] == pytest.approx(direct_scores(folder, ids, [len(ids) - 1])[0], abs=1e-5)


# -- parity -------------------------------------------------------------------------------------


async def test_scores_of_a_whole_trajectory(prm: QwenPRM, folder: Path) -> None:
    t = Trajectory()
    got = []
    for step in STEPS:
        scores = await prm.score(t.context, pool(*OTHERS, step))
        for other, score in zip((*OTHERS, step), scores, strict=True):
            ids, at = all_ids(prm, QUESTION, (*(s.text for s in t.context.steps), other))
            assert score == pytest.approx(direct_scores(folder, ids, at[-1:])[0], abs=1e-5)
        got.append(scores[-1])
        t.commit(candidate(step, len(OTHERS)))
    ids, at = all_ids(prm, QUESTION, STEPS)
    assert got == pytest.approx(direct_scores(folder, ids, at), abs=1e-5)
    assert all(0 <= s <= 1 for s in got)
    assert len(set(got)) == len(got)


async def test_candidates_in_any_order(prm: QwenPRM) -> None:
    texts = (*OTHERS, STEPS[0])
    t = Trajectory()
    expected = dict(zip(texts, await prm.score(t.context, pool(*texts)), strict=True))
    for order in itertools.permutations(texts):
        scores = await prm.score(t.context, pool(*order))
        assert scores == pytest.approx([expected[x] for x in order], abs=1e-5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(data=st.data())
def test_any_history_scores_as_from_scratch(
    prm: QwenPRM, folder: Path, data: st.DataObject
) -> None:
    """Steps that were scored, steps that never were, several at once: the state is the text's."""
    texts = st.sampled_from([*STEPS, *OTHERS, "x", "", "\n\n", " \n"])

    t = Trajectory()

    async def play() -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            shown = data.draw(st.lists(texts, min_size=1, max_size=4))
            scores = await prm.score(t.context, pool(*shown))
            history = tuple(s.text for s in t.context.steps)
            for text, score in zip(shown, scores, strict=True):
                ids, at = all_ids(prm, QUESTION, (*history, text))
                assert score == pytest.approx(direct_scores(folder, ids, at[-1:])[0], abs=1e-5)
            for text in data.draw(st.lists(st.one_of(texts, st.sampled_from(shown)), max_size=2)):
                t.commit(candidate(text))

    async def play_and_release() -> None:
        try:
            await play()
        finally:  # hypothesis may give an example up in the middle
            await prm.release(t.context)

    asyncio.run(play_and_release())
    assert sum(prm.engine.in_use.values()) == 0


async def test_trl_style_single_layer(tmp_path: Path) -> None:
    for i, bias in enumerate(({}, {"score.bias": torch.tensor([0.3, -0.2])})):
        head = {"score.weight": torch.randn(2, HIDDEN), **bias}
        folder = save_prm(tmp_path / str(i), head)
        prm = QwenPRM(str(folder), convention="separator")
        [score] = await prm.score(Trajectory().context, pool(STEPS[0]))
        ids, at = all_ids(prm, QUESTION, STEPS[:1])
        assert score == pytest.approx(direct_scores(folder, ids, at)[0], abs=1e-5)


# -- work ---------------------------------------------------------------------------------------


async def test_only_new_tokens_are_fed(prm: QwenPRM) -> None:
    t = Trajectory()
    fed = len(prm.prefix_ids(QUESTION))
    for step in STEPS:
        await prm.score(t.context, pool(*OTHERS, step))
        fed += sum(len(prm.step_ids(x)) for x in (*OTHERS, step))
        assert prm.engine.tokens_fed == fed
        t.commit(candidate(step, len(OTHERS)))  # its fork is adopted: nothing is fed for it
    await prm.release(t.context)


async def test_a_step_that_was_not_scored_is_fed_once(prm: QwenPRM) -> None:
    t = Trajectory()
    await prm.score(t.context, pool(OTHERS[0]))
    before = prm.engine.tokens_fed
    t.commit(candidate(STEPS[0]))
    await prm.score(t.context, pool(OTHERS[1]))
    expected = len(prm.step_ids(STEPS[0])) + len(prm.step_ids(OTHERS[1]))
    assert prm.engine.tokens_fed - before == expected


async def test_duplicates_are_fed_once(prm: QwenPRM) -> None:
    t = Trajectory()
    scores = await prm.score(t.context, pool(STEPS[0], OTHERS[0], STEPS[0], STEPS[0]))
    assert scores[0] == scores[2] == scores[3] != scores[1]
    fed = len(prm.prefix_ids(QUESTION)) + sum(len(prm.step_ids(x)) for x in (STEPS[0], OTHERS[0]))
    assert prm.engine.tokens_fed == fed


async def test_nothing_to_score(prm: QwenPRM) -> None:
    assert await prm.score(Trajectory().context, []) == []
    assert prm.engine.tokens_fed == 0


async def test_concurrent_trajectories_score_as_one_at_a_time(folder: Path) -> None:
    async def play(prm: QwenPRM, number: int) -> list[float]:
        t = Trajectory(f"{QUESTION} No. {number}")
        out = []
        for step in STEPS[: 1 + number % 3]:
            out += await prm.score(t.context, pool(*OTHERS[: 1 + number % 2], step))
            t.commit(candidate(step))
        await prm.release(t.context)
        return out

    one, many = QwenPRM(str(folder)), QwenPRM(str(folder))
    alone = [await play(one, i) for i in range(6)]
    together = await asyncio.gather(*(play(many, i) for i in range(6)))
    for a, b in zip(alone, together, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    assert one.engine.tokens_fed == many.engine.tokens_fed
    assert set(many.engine.in_use.values()) == {0}


async def test_release_frees_everything(prm: QwenPRM) -> None:
    t = Trajectory()
    await prm.score(t.context, pool(*STEPS))
    assert prm.engine.in_use["parked"] == 1
    await prm.release(t.context)
    assert set(prm.engine.in_use.values()) == {0}
    await prm.release(t.context)  # again, and for one that never was
    await prm.release(Trajectory().context)


# -- failures -----------------------------------------------------------------------------------


async def test_a_full_context_is_an_error_and_not_fatal(folder: Path) -> None:
    prm = QwenPRM(str(folder), max_context=120)
    t = Trajectory()
    long = "12 apples and 4 x = 3. " * 20
    with pytest.raises(ScorerError, match=r"context of 120 tokens is full .* lower limits"):
        await prm.score(t.context, pool(STEPS[0], long))
    [score] = await prm.score(t.context, pool(STEPS[0]))
    assert 0 <= score <= 1
    t.commit(candidate(long))
    with pytest.raises(ScorerError, match="a committed step needs"):
        await prm.score(t.context, pool(STEPS[0]))
    await prm.release(t.context)
    assert set(prm.engine.in_use.values()) == {0}


async def test_a_question_longer_than_the_context(folder: Path) -> None:
    prm = QwenPRM(str(folder), max_context=120)
    with pytest.raises(InputError, match="of the PRM's context of 120; shorten it"):
        await prm.score(Trajectory("why? " * 200).context, pool("x"))
    assert set(prm.engine.in_use.values()) == {0}


@pytest.mark.parametrize("where", ["score.2.bias", "model.norm.weight"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
async def test_non_finite_logits_are_told(tmp_path: Path, where: str, bad: float) -> None:
    folder = save_prm(tmp_path)
    edit(folder, {where: torch.full((HIDDEN if "norm" in where else 2,), bad)})
    prm = QwenPRM(str(folder))
    t = Trajectory()
    with pytest.raises(ScorerError, match=r"NaN or infinite") as caught:
        await prm.score(t.context, pool(STEPS[0]))
    assert str(folder) in str(caught.value)
    await prm.release(t.context)
    assert set(prm.engine.in_use.values()) == {0}


async def test_an_interrupted_extension_starts_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prm = QwenPRM(str(folder))
    t = Trajectory()
    await prm.score(t.context, pool(OTHERS[0]))
    t.commit(candidate(STEPS[0]))

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(prm.engine.runner, "forward", broken)
        with pytest.raises(RuntimeError):
            await prm.score(t.context, pool(STEPS[1]))
    [score] = await prm.score(t.context, pool(STEPS[1]))
    ids, at = all_ids(prm, QUESTION, STEPS[:2])
    assert score == pytest.approx(direct_scores(folder, ids, at[-1:])[0], abs=1e-5)
    await prm.release(t.context)
    assert set(prm.engine.in_use.values()) == {0}


def test_wrong_options(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"step tag '<nope>' is \d+ tokens"):
        QwenPRM(str(folder), step_tag="<nope>")
    assert QwenPRM(str(folder), convention="separator", step_tag="<nope>").max_context == 512


@pytest.mark.parametrize(
    ("argument", "value"),
    [("model", ""), ("convention", "both"), ("step_tag", ""), ("max_context", 1), ("dtype", "x")],
)
def test_wrong_arguments_are_named(folder: Path, argument: str, value: Any) -> None:
    arguments: dict[str, Any] = {"model": str(folder), argument: value}
    with pytest.raises(ConfigError, match=argument):
        QwenPRM(**arguments)


def test_the_spec_builds_it(folder: Path) -> None:
    spec = QwenPRMSpec(model=str(folder), convention="separator", max_context=100)
    built = spec.build()
    assert (built.convention, built.max_context) == ("separator", 100)

"""The model between lm_eval's requests and a composition: order, repeats, failures, refusals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model

from kvrescue import Rescue
from kvrescue.config import config_hash, load_config
from kvrescue.errors import ConfigError, InputError, KVRescueError, PolicyError
from kvrescue.evaluation.harness import KVRescueLM
from kvrescue.evaluation.harness.generation import GenerationKwargs, cut
from tests.harness.parts import DEGRADES, FAILS, request, write_config

LOGGER = "lm_eval.models.kvrescue"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def lm(config: str) -> Iterator[KVRescueLM]:
    with KVRescueLM(config=config) as built:
        yield built


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """lm_eval keeps its log from the root logger."""
    monkeypatch.setattr(logging.getLogger("lm_eval"), "propagate", True)
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


def alone(lm: KVRescueLM, asked: Instance) -> str:
    """What a request should be answered with: an own run, cut."""
    text, kwargs = asked.args
    said = GenerationKwargs(**kwargs)
    sampling, limits = said.applied(lm.config, lm.args.sampling)
    config = lm.config.model_copy(update={"sampling": sampling, "limits": limits})
    with Rescue.from_config(config) as rescue:
        return cut(rescue.solve(text).text, said.until)


REQUESTS = st.lists(
    st.builds(
        request,
        st.sampled_from(["a?", "b?", "c?", f"{DEGRADES}?"]),
        st.integers(0, 9),
        until=st.lists(st.sampled_from(["Q:", ".", "two"]), max_size=2),
        max_gen_toks=st.sampled_from([None, 3, 20]),
    ),
    max_size=6,
)


@given(st.data())
def test_answers_are_those_of_each_request_alone_in_any_order(
    lm: KVRescueLM, data: st.DataObject
) -> None:
    asked = data.draw(REQUESTS)
    order = data.draw(st.permutations(range(len(asked))))
    answers = lm.generate_until(asked, disable_tqdm=True)
    assert answers == [alone(lm, one) for one in asked]
    permuted = lm.generate_until([asked[place] for place in order], disable_tqdm=True)
    assert permuted == [answers[place] for place in order]


def test_limits_are_each_tasks_own(lm: KVRescueLM) -> None:
    """The fake policies' tokens are words."""
    asked = [request(f"{i}?", i, max_gen_toks=1 + i % 4) for i in range(12)]
    lengths = [len(text.split()) for text in lm.generate_until(asked, disable_tqdm=True)]
    assert all(length <= 1 + i % 4 for i, length in enumerate(lengths))
    assert any(length > 2 for length in lengths)


def test_repeats_are_drawn_anew(lm: KVRescueLM) -> None:
    """lm_eval repeats a request by passing it several times; the first is drawn as ever."""
    several = [request(f"{i}?", i) for i in range(8)]
    repeated = [one for one in several for _ in range(4)]
    answers = lm.generate_until(repeated, disable_tqdm=True)
    assert answers[::4] == lm.generate_until(several, disable_tqdm=True)
    assert answers == lm.generate_until(repeated, disable_tqdm=True)
    assert any(answers[4 * i] != answers[4 * i + k] for i in range(8) for k in (1, 2, 3))


def test_a_seed_of_its_own(lm: KVRescueLM, config: str) -> None:
    asked = [request(f"{i}?", i) for i in range(8)]
    with KVRescueLM(config=config, seed=5) as other:
        assert other.generate_until(asked) != lm.generate_until(asked)


# -- failures ---------------------------------------------------------------------------------


def test_a_failure_names_its_document(lm: KVRescueLM) -> None:
    asked = [request("a?", 3), request(f"{FAILS}?", 17), request("b?", 4)]
    with pytest.raises(PolicyError, match=r"task 'sums', doc 17: .*it would not"):
        lm.generate_until(asked)
    assert lm.generate_until(asked[:1]) == [alone(lm, asked[0])]


def test_failures_that_are_told_and_passed_over(config: str, told: Any) -> None:
    asked = [request("a?", 3), request(f"{FAILS}?", 17), request(f"{DEGRADES}?", 5)]
    with KVRescueLM(config=config, on_error="degrade") as lm:
        answers = lm.generate_until(asked)
        assert answers == [alone(lm, asked[0]), "", alone(lm, asked[2])]
        assert answers[0]
        assert answers[2]
    warnings = [r.getMessage() for r in told.records if r.levelno >= logging.WARNING]
    assert any("doc 17" in line and "it would not" in line for line in warnings)
    assert any("2 requests answered, 1 of them degraded; 1 failed" in line for line in warnings)


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (request("  ", 8), InputError, "doc 8: the question is empty"),
        (request("a?", 8, stop="x"), ConfigError, "doc 8: .*unknown field 'stop'"),
        (request("a?", 8, until=["\n"]), ConfigError, "doc 8: .*max_steps=1"),
        (request("a?", 8, do_sample=False), ConfigError, "doc 8: .*are the same"),
    ],
)
def test_a_request_that_is_refused_is_refused_before_any_work(
    lm: KVRescueLM, asked: Instance, error: type[Exception], text: str
) -> None:
    lm.set_cache_hook(hook := Hook())
    with pytest.raises(error, match=text):
        lm.generate_until([request("a?"), asked])
    assert not hook.added


# -- lm_eval's cache --------------------------------------------------------------------------


class Hook:
    """In the place of lm_eval's."""

    def __init__(self) -> None:
        self.added: list[tuple[str, Any, str]] = []

    def add_partial(self, attribute: str, arguments: Any, result: str) -> None:
        self.added.append((attribute, arguments, result))


def test_every_answer_goes_to_the_cache_when_it_is_there(config: str) -> None:
    good = [request(f"{i}?", i) for i in range(3)]
    with KVRescueLM(config=config, set="concurrency=1") as lm:
        lm.set_cache_hook(hook := Hook())
        with pytest.raises(PolicyError):
            lm.generate_until([*good, request(f"{FAILS}?", 9)])
        expected = [("generate_until", one.args, alone(lm, one)) for one in good]
    assert hook.added == expected


def test_what_is_cached_is_not_solved_again(config: str, tmp_path: Path) -> None:
    asked = [request(f"{i}?", i) for i in range(3)]
    path = str(tmp_path / "cache.db")
    with KVRescueLM(config=config) as lm:
        cached = CachingLM(lm, path)
        answers = cached.generate_until(asked)
        assert answers == lm.generate_until(asked)
    again = CachingLM(lm, path)  # closed: it could not answer by itself
    assert again.generate_until(asked) == answers
    for database in (cached.dbdict, again.dbdict):
        database.close()


# -- what it is not ---------------------------------------------------------------------------


def test_likelihoods_are_refused(lm: KVRescueLM) -> None:
    asked = [request("a?", kind="loglikelihood")]
    for method in (lm.loglikelihood, lm.loglikelihood_rolling):
        with pytest.raises(ConfigError, match=r"\(sums\).*no single likelihood.*generate_until"):
            method(asked)


def test_chat_templates_are_refused(lm: KVRescueLM) -> None:
    """All the ways in which lm_eval may come to them."""
    assert lm.chat_template(False) == ""
    for ask in (
        lambda: lm.chat_template(True),
        lambda: lm.chat_template("name"),
        lambda: lm.apply_chat_template([{"role": "user", "content": "a?"}]),
        lambda: lm.tokenizer_name,
    ):
        with pytest.raises(ConfigError, match="templated twice"):
            ask()


def test_one_process(lm: KVRescueLM, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (lm.rank, lm.world_size) == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE = 2"):
        KVRescueLM(config=config)
    monkeypatch.setenv("WORLD_SIZE", "1")
    KVRescueLM(config=config).close()


# -- how lm_eval builds it --------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["config={},n=1,seed=2", '{{"config": "{}", "n": 1, "seed": 2, "set": []}}']
)
def test_arguments_as_one_text(config: str, text: str, told: Any) -> None:
    """With what lm_eval adds of itself, which is not worth a warning."""
    added = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
    built = get_model("kvrescue").create_from_arg_string(text.format(config), added)
    with built as lm:
        expected = load_config(config, ["proposers.base.candidates=1", "seed=2"])
        assert config_hash(lm.config) == config_hash(expected)
        assert lm.get_model_info()["kvrescue_config"] == lm.config.model_dump(mode="json")
    assert not told.records


@pytest.mark.parametrize("name", ["batch_size", "max_batch_size", "device"])
def test_what_lm_eval_cannot_say_here(config: str, name: str, told: Any) -> None:
    value = "cpu" if name == "device" else 8
    get_model("kvrescue").create_from_arg_obj({"config": config}, {name: value}).close()
    assert f"{name} = {value!r} is not used" in told.text


def test_sampling_that_is_not_applied_is_told(config: str, told: Any) -> None:
    asked = request("a?", do_sample=False, max_tokens=9, max_gen_toks=20)
    with KVRescueLM(config=config, sampling="config") as lm:
        lm.generate_until([asked, asked])
    warnings = [r.getMessage() for r in told.records if r.levelno >= logging.WARNING]
    assert sum("{'do_sample': False} is not applied" in line for line in warnings) == 1
    assert any("the first counts" in line for line in warnings)


def test_a_part_that_cannot_be_built(tmp_path: Path) -> None:
    with pytest.raises(KVRescueError, match="nowhere"):
        KVRescueLM(preset="tiny", set=f"proposers.helper.policy.model={tmp_path}/nowhere")


def test_closing(config: str) -> None:
    """By hand, twice, and by going away; the background loop then ends."""
    before = {thread for thread in threading.enumerate() if thread.name == "kvrescue"}
    lm = KVRescueLM(config=config)
    policies = [policy for _, policy in lm._parts.policies]
    del lm
    assert all(policy.finished for policy in policies)  # type: ignore[attr-defined]
    lm = KVRescueLM(config=config)
    lm.close()
    lm.close()
    assert {thread for thread in threading.enumerate() if thread.name == "kvrescue"} == before

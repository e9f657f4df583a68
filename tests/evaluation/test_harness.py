"""What tasks of lm-evaluation-harness ask for: arguments, settings, stop strings.

The model itself is tested in tests/harness, where lm_eval is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.config import RescueConfig, load_config
from kvrescue.errors import ConfigError, DependencyError
from kvrescue.evaluation.harness.arguments import ModelArgs, from_json
from kvrescue.evaluation.harness.generation import GenerationKwargs, cut
from kvrescue.evaluation.methods import METHODS, compose

TINY = load_config("tiny")
GREEDY = load_config("tiny", ["sampling.temperature=0"])
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=4)


@given(st.text("abc\n", max_size=30), STOPS)
def test_a_cut_text_is_the_longest_prefix_without_a_stop_string(
    text: str, until: list[str]
) -> None:
    kept = cut(text, until)
    assert text.startswith(kept)
    assert not any(stop in kept for stop in until)
    if kept != text:
        rest = text[len(kept) :]
        assert any(rest.startswith(stop) for stop in until)


@given(st.text("ab\n", max_size=30), STOPS, st.randoms())
def test_cutting_again_or_in_another_order_changes_nothing(
    text: str, until: list[str], chance: Any
) -> None:
    kept = cut(text, until)
    chance.shuffle(until)
    assert cut(text, until) == cut(kept, until) == kept


def applied(config: RescueConfig = TINY, origin: Any = "task", **kwargs: Any) -> Any:
    return GenerationKwargs(**kwargs).applied(config, origin)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0.1, 2),
            "top_p": st.floats(0.1, 1),
            "top_k": st.integers(0, 50),
        },
    ),
    st.sampled_from([None, True]),
    st.one_of(st.none(), st.integers(1, 9999)),
)
def test_what_a_task_says_is_applied_and_the_rest_stays(
    said: dict[str, Any], do_sample: bool | None, tokens: int | None
) -> None:
    """Under sampling=config the length still is the task's."""
    sampling, limits = applied(do_sample=do_sample, max_gen_toks=tokens, **said)
    assert sampling.model_dump() == TINY.sampling.model_dump() | said
    expected = TINY.limits.max_output_tokens if tokens is None else tokens
    assert limits.model_dump() == TINY.limits.model_dump() | {"max_output_tokens": expected}
    kept, same = applied(origin="config", do_sample=do_sample, max_gen_toks=tokens, **said)
    assert (kept, same) == (TINY.sampling, limits)


@pytest.mark.parametrize("said", [{"do_sample": False}, {"temperature": 0}, {"temperature": 0.0}])
def test_greedy(said: dict[str, Any]) -> None:
    """Several candidates of one proposer would be equal; those of several proposers are not."""
    assert applied(compose(TINY, "kv_rescue", 1), **said)[0].temperature == 0
    several = compose(TINY, "kv_rescue", 2)
    with pytest.raises(ConfigError, match=r"candidates of proposer 'base' are the same.*sampling="):
        applied(several, **said)
    assert applied(several, "config", **said)[0] == TINY.sampling
    wanted = compose(GREEDY, "kv_rescue", 2)
    assert applied(wanted, **said)[0] == GREEDY.sampling


@pytest.mark.parametrize("origin", ["task", "config"])
def test_a_stop_string_that_every_step_ends_with(origin: Any) -> None:
    for stop in ("\n", "\n\n"):
        with pytest.raises(ConfigError, match=r"max_steps=1"):
            applied(origin=origin, until=["x", stop])
        single = load_config("tiny", ["limits.max_steps=1"])
        assert applied(single, origin, until=stop)[1].max_steps == 1
    applied(origin=origin, until=["\n\n\n", "."])


@given(
    st.permutations(["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"]),
    st.integers(1, 4),
)
def test_the_first_name_of_the_length_counts(names: list[str], count: int) -> None:
    """In lm_eval's order, whatever the order in which they are written."""
    ranks = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
    given_ = {name: 1 + ranks.index(name) for name in names[:count]}
    assert applied(**given_)[1].max_output_tokens == min(given_.values())


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"temprature": 0.5}, r"'temprature'; did you mean 'temperature'"),
        ({"repetition_penalty": 1.1}, r"repetition_penalty"),
        ({"num_beams": 4}, r"num_beams = 4"),
        ({"until": [""]}, r"until\.0 = ''"),
        ({"until": 3}, r"until = 3"),
        ({"max_gen_toks": 0}, r"max_gen_toks = 0: expected a whole number of at least 1"),
        ({"max_gen_toks": True}, r"max_gen_toks = True"),
        ({"temperature": -1}, r"temperature = -1"),
        ({"temperature": "warm"}, r"temperature = 'warm'"),
        ({"top_p": 0}, r"top_p = 0"),
        ({"do_sample": "maybe"}, r"do_sample = 'maybe': expected true or false"),
        ({"do_sample": False, "temperature": 0.5}, r"do_sample=True"),
        ({"do_sample": True, "temperature": 0}, r"give a temperature"),
    ],
)
def test_generation_kwargs_that_are_refused(kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        applied(**kwargs)


def test_sampling_needs_a_temperature() -> None:
    with pytest.raises(ConfigError, match="give a temperature"):
        applied(GREEDY, do_sample=True)
    assert applied(GREEDY, do_sample=True, temperature=0.5)[0].temperature == 0.5


# -- model_args -------------------------------------------------------------------------------


def test_the_configuration_as_it_stands() -> None:
    assert ModelArgs(preset="tiny").rescue_config() == TINY


@pytest.mark.parametrize("method", METHODS)
def test_methods(method: Any) -> None:
    for n in (1, 3):
        found = ModelArgs(preset="tiny", method=method, n=n).rescue_config()
        assert found == compose(TINY, method, n)
    two = "proposers.base.candidates=2"
    found = ModelArgs(preset="tiny", method=method, set=two).rescue_config()
    assert {part.candidates for part in found.proposers.values()} == {2}


def test_n_alone_is_kv_rescue() -> None:
    assert ModelArgs(preset="tiny", n=2).rescue_config() == compose(TINY, "kv_rescue", 2)


@pytest.mark.parametrize(
    "overrides",
    [
        "limits.max_steps=5;sampling.temperature=0.5",
        " limits.max_steps=5 ; sampling.temperature=0.5 ;",
        ["limits.max_steps=5", "sampling.temperature=0.5"],
    ],
)
def test_several_overrides(overrides: Any) -> None:
    expected = load_config("tiny", ["limits.max_steps=5", "sampling.temperature=0.5", "seed=3"])
    assert ModelArgs(preset="tiny", set=overrides, seed=3).rescue_config() == expected


def test_a_file_and_an_engine(tmp_path: Path) -> None:
    from kvrescue.config import resolved_yaml

    path = tmp_path / "mine.yaml"
    path.write_text(resolved_yaml(TINY), encoding="utf-8")
    assert ModelArgs(config=str(path)).rescue_config() == TINY
    kinds = ModelArgs(preset="tiny", engine="vllm").rescue_config().proposers.values()
    assert {part.policy.kind for part in kinds} == {"vllm"}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, "found neither of preset and config"),
        ({"preset": "tiny", "config": "x.yaml"}, "found both"),
        ({"preset": "tinny"}, "did you mean 'tiny'"),
        ({"pretrained": "tiny"}, "unknown field 'pretrained'; did you mean 'preset'"),
        ({"preset": "tiny", "metod": "helper"}, "did you mean 'method'"),
        ({"preset": "tiny", "method": "kv-rescue"}, "did you mean 'kv_rescue'"),
        ({"preset": "tiny", "engine": "vlm"}, "did you mean 'vllm'"),
        ({"preset": "tiny", "n": 0}, "n = 0: expected a whole number from 1 to 4096"),
        ({"preset": "tiny", "seed": "x"}, "seed = 'x'"),
        ({"preset": "tiny", "sampling": "paper"}, "'task' or 'config'"),
        ({"preset": "tiny", "set": "limits.max_stepz=3"}, "did you mean 'max_steps'"),
        ({"preset": "tiny", "set": "limits"}, "should look like"),
    ],
)
def test_model_args_that_are_refused(args: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ModelArgs(**args).rescue_config()


def test_methods_need_base_and_helper(tmp_path: Path) -> None:
    from kvrescue.config import resolved_yaml

    alone = TINY.model_copy(update={"proposers": {"one": TINY.proposers["base"]}})
    path = tmp_path / "mine.yaml"
    path.write_text(resolved_yaml(alone), encoding="utf-8")
    assert ModelArgs(config=str(path)).rescue_config() == alone
    with pytest.raises(ConfigError, match="no 'base'"):
        ModelArgs(config=str(path), method="helper").rescue_config()


def test_json() -> None:
    assert from_json(' {"preset": "tiny", "set": ["a=1"]}') == {"preset": "tiny", "set": ["a=1"]}
    assert from_json("preset=tiny") is None
    with pytest.raises(ConfigError, match="not JSON"):
        from_json("{preset: tiny}")


# -- without lm_eval --------------------------------------------------------------------------


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvrescue.evaluation import harness

    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, f"{harness.__name__}.model", raising=False)
    with pytest.raises(DependencyError, match=r"'lm_eval'.*kvrescue\[lm-eval\]"):
        harness.KVRescueLM  # noqa: B018
    with pytest.raises(AttributeError, match="KVRescueML"):
        harness.KVRescueML  # noqa: B018


def test_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "lm_eval.py").write_text("raise ModuleNotFoundError(name='lm_eval')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "kvrescue.evaluation.harness", "--tasks", "gsm8k"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == DependencyError.exit_code
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert "kvrescue[lm-eval]" in done.stderr

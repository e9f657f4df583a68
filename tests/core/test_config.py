"""Configuration: what goes in comes out, and every fault names its path and the nearest name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvrescue import presets
from kvrescue.config import (
    ProposerConfig,
    RescueConfig,
    config_hash,
    load_config,
    resolved_yaml,
)
from kvrescue.errors import ConfigError, DetectorError, KVRescueError, PluginError, UnknownNameError
from kvrescue.faults import line
from kvrescue.registry import validate
from kvrescue.rules import Limits
from kvrescue.sampling import Sampling
from tests.core.components import FakeEvictor, FakeSpec, fake_plugins
from tests.core.fakes import FakeDetector
from tests.core.test_plugins import write_plugin

PLUGINS = fake_plugins()


def load(source: Any, *overrides: str) -> RescueConfig:
    return load_config(source, overrides, plugins=PLUGINS)


def example() -> dict[str, Any]:
    return {
        "proposers": {
            "base": {
                "policy": {
                    "kind": "fake",
                    "model": "m",
                    "evictor": {"kind": "oldest", "budget": 4},
                },
                "detectors": ["fake", {"kind": "picky", "level": 2}],
            },
            "helper": {"policy": {"kind": "fake", "model": "h"}, "candidates": 2},
        },
        "scorer": {"kind": "fake"},
    }


# -- round trip -------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = texts.filter(str.strip)
positive = st.integers(1, 10**6)
levels = st.floats(allow_nan=False)
evictors = st.none() | st.builds(
    lambda b, w, p: {"kind": "oldest", "budget": b, "window": w, "protect_prompt": p},
    positive,
    positive,
    st.booleans(),
)
policies = st.fixed_dictionaries(
    {"kind": st.just("fake"), "model": texts, "evictor": evictors},
    optional={
        "words": st.lists(texts, max_size=3),
        "extras": st.dictionaries(texts, st.fixed_dictionaries({"depth": positive}), max_size=2),
        "free": st.dictionaries(texts, levels | st.lists(levels, max_size=2), max_size=2),
    },
)
detectors = st.fixed_dictionaries({"kind": st.just("fake")}, optional={"level": levels})
configurations = st.fixed_dictionaries(
    {
        "proposers": st.dictionaries(
            words,
            st.fixed_dictionaries(
                {"policy": policies},
                optional={
                    "candidates": st.integers(1, 4096),
                    "detectors": st.lists(detectors, max_size=2),
                },
            ),
            min_size=1,
            max_size=3,
        ),
        "scorer": st.fixed_dictionaries({"kind": st.just("fake")}, optional={"level": levels}),
    },
    optional={
        "seed": st.integers(),
        "stop_at_answer": st.booleans(),
        "when_all_flagged": st.sampled_from(["stop", "redraw"]),
        "on_scorer_error": st.sampled_from(["raise", "degrade"]),
        "on_policy_error": st.sampled_from(["raise", "degrade"]),
        "concurrency": positive,
        "sampling": st.fixed_dictionaries(
            {},
            optional={
                "temperature": st.floats(0, 5),
                "top_p": st.floats(0, 1, exclude_min=True),
                "separator": texts.filter(bool),
            },
        ),
        "limits": st.fixed_dictionaries(
            {}, optional={"max_output_tokens": st.none() | positive, "max_context": positive}
        ),
    },
)


@given(configurations)
def test_resolved_yaml_loads_back_to_an_equal_configuration(data: dict[str, Any]) -> None:
    config = load(data)
    text = resolved_yaml(config)
    again = load(yaml.safe_load(text))
    assert again == config
    assert list(again.proposers) == list(config.proposers)
    assert resolved_yaml(again) == text
    assert config_hash(again) == config_hash(config)
    assert load(config) == config


def test_nan_is_kept_wherever_it_stands() -> None:
    data = example()
    data["proposers"]["base"]["policy"]["free"] = {"x": [math.nan, math.inf]}
    data["scorer"]["level"] = math.nan
    config = load(data)
    for again in (load(config), load(yaml.safe_load(resolved_yaml(config)))):
        assert repr(again) == repr(config)
        assert config_hash(again) == config_hash(config)
    assert repr(config).count("nan") == 2
    data["proposers"]["base"]["policy"]["free"] = {"x": [None, None]}
    assert config_hash(load(data)) != config_hash(config)


def test_resolved_yaml_spells_out_every_default() -> None:
    resolved = yaml.safe_load(resolved_yaml(load(example())))
    assert resolved["limits"]["max_steps"] == 1024
    assert resolved["sampling"]["separator"] == "\n\n"
    assert resolved["proposers"]["base"]["policy"]["evictor"] == {
        "kind": "oldest",
        "budget": 4,
        "window": 128,
        "observation": 8,
        "interval": 1,
        "protect_prompt": False,
    }
    assert resolved["proposers"]["base"]["detectors"][0] == {"kind": "fake", "level": 1.0}
    assert '"\\n\\n"' in resolved_yaml(load(example()))


def test_sections_become_components() -> None:
    base = load(example()).proposers["base"]
    assert base.policy == FakeSpec(model="m", evictor=FakeEvictor(budget=4))
    assert base.detectors[0] == FakeDetector()
    assert base.candidates == 1


def test_a_spec_takes_a_component_that_nobody_registered() -> None:
    class Own(FakeEvictor):
        pass

    with PLUGINS.registry.active():
        assert FakeSpec(model="m", evictor=Own(budget=1)).evictor == Own(budget=1)
        assert FakeSpec.model_validate({"model": "m", "evictor": None}).evictor is None


def test_the_hash_changes_with_results_only() -> None:
    config = load(example())
    same = load(example(), "concurrency=1")
    assert config_hash(same) == config_hash(config)
    hashes = {config_hash(config)}
    for override in (
        "seed=1",
        "proposers.base.policy.evictor.window=127",
        "proposers.base.detectors.fake.level=2",
        "scorer.level=0.5",
        "on_policy_error=degrade",
    ):
        hashes.add(config_hash(load(example(), override)))
    data = example()
    data["proposers"] = dict(reversed(data["proposers"].items()))
    hashes.add(config_hash(load(data)))
    assert len(hashes) == 7


def test_the_json_schema_lists_the_kinds() -> None:
    with PLUGINS.registry.active():
        schema = RescueConfig.model_json_schema()
    scorer = schema["properties"]["scorer"]
    assert scorer["properties"]["kind"]["enum"] == [
        "qwen_prm",
        "vllm_prm",
        "http_prm",
        "likelihood",
        "fake",
    ]


# -- sources ----------------------------------------------------------------------------------


def test_a_file_a_path_and_data_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(example(), sort_keys=False))
    assert load(path) == load(str(path)) == load(example())


def test_presets_are_found_by_name() -> None:
    assert "tiny" in presets.names()
    with pytest.raises(UnknownNameError, match="unknown preset 'tinny'; did you mean 'tiny'"):
        load("tinny")


def test_a_preset_is_not_hidden_by_a_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_text("just text")
    (tmp_path / "mine").write_text("just text")
    with pytest.raises(UnknownNameError, match="unknown field 'sede'"):
        load(
            "tiny",
            "sede=1",
            "proposers.base.policy={kind: fake, model: m}",
            "proposers.helper.policy={kind: fake, model: m}",
            "scorer={kind: fake}",
            "proposers.base.detectors=[]",
        )
    with pytest.raises(ConfigError, match="mine: should be a mapping"):
        load("mine")


@pytest.mark.parametrize("name", ["x" * 5000, "a\x00b", "a\x00b.yaml", "", "\n"])
def test_odd_names_are_no_accidents(name: str) -> None:
    with pytest.raises(ConfigError):
        load(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\nb: 2", r"line 2, column 5: expected"),
        ("a: 1\na: 2\n", r"line 2, column 1: the key 'a' is given twice"),
        (
            "proposers:\n  base: {}\n  base: {}\n",
            r"line 3, column 3: the key 'base' is given twice",
        ),
        ("just text", "should be a mapping"),
        ("", "should be a mapping"),
        ("a: \x00", "special characters are not allowed"),
        ("a: !!python/name:os.system x", "could not determine a constructor"),
    ],
)
def test_yaml_faults_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"run\.yaml.*{message}"):
        load(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: cannot be read: No such file"):
        load(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "latin.yaml")


def test_plugins_of_a_file_are_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    plugin = write_plugin(folder, "beside")
    data = {**example(), "plugins": ["./beside.py"]}
    data["proposers"]["base"]["detectors"] = ["beside"]
    (folder / "run.yaml").write_text(yaml.safe_dump(data))
    known = fake_plugins()
    config = load_config(folder / "run.yaml", plugins=known)
    assert config.plugins == (str(plugin),)
    assert {info.origin for info in known.describe()} == {"builtin", "registered", "config"}
    # The resolved file works from anywhere.
    monkeypatch.chdir("/")
    assert load_config(yaml.safe_load(resolved_yaml(config)), plugins=fake_plugins()) is not None
    with pytest.raises(PluginError, match="no such file"):
        load_config(data, plugins=fake_plugins())


# -- faults -----------------------------------------------------------------------------------

UNKNOWN = [
    ("sede", 1, "sede: unknown field 'sede'; did you mean 'seed'?"),
    ("limits.max_step", 1, "limits.max_step: unknown field 'max_step'; did you mean 'max_steps'?"),
    ("scorer.kind", "fakke", "scorer.kind: unknown scorer 'fakke'; did you mean 'fake'?"),
    ("scorer.levle", 1, "scorer.levle: unknown field 'levle'; did you mean 'level'?"),
    (
        "proposers.base.policy.evictor.bugdet",
        32,
        "proposers.base.policy.evictor.bugdet: unknown field 'bugdet'; did you mean 'budget'?",
    ),
    (
        "proposers.base.policy.evictor.kind",
        "oldst",
        "proposers.base.policy.evictor.kind: unknown evictor 'oldst'; did you mean 'oldest'?",
    ),
    (
        "proposers.base.detectors.picky.levl",
        1,
        "proposers.base.detectors.1.levl: unknown field 'levl'; did you mean 'level'?",
    ),
    (
        "proposers.base.policy.extra.dept",
        1,
        "proposers.base.policy.extra.dept: unknown field 'dept'; did you mean 'depth'?",
    ),
    (
        "proposers.base.policy.extras.x.dept",
        1,
        "proposers.base.policy.extras.x.dept: unknown field 'dept'; did you mean 'depth'?",
    ),
    (
        "proposers.base.polcy",
        1,
        "proposers.base.polcy: unknown field 'polcy'; did you mean 'policy'",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), UNKNOWN)
def test_unknown_names_tell_path_and_nearest(path: str, value: object, message: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load(example(), f"{path}={value}")
    assert str(caught.value).startswith(message)


WRONG = [
    (
        "proposers.base.candidates=0",
        "proposers.base.candidates = 0: expected a whole number from 1 to 4096",
    ),
    (
        "proposers.base.policy.evictor.budget=-2",
        "evictor.budget = -2: expected a whole number greater than 0",
    ),
    ("proposers.base.policy.evictor=7", "policy.evictor = 7: expected one evictor: a section with"),
    ("proposers.base.policy.evictor={budget: 3}", "policy.evictor.kind: names no evictor"),
    ("proposers.base.policy=null", "proposers.base.policy = null: expected one policy"),
    ("proposers={}", "proposers = {}: expected a section of named entries .at least 1."),
    ("sampling.temperature=hot", "sampling.temperature = 'hot': expected a finite number"),
    ("sampling.temperature=.nan", "sampling.temperature = nan: expected a finite number"),
    ("when_all_flagged=panic", "when_all_flagged = 'panic': expected 'stop' or 'redraw'$"),
    ("concurrency=0", "concurrency = 0: expected a whole number of at least 1"),
    ("limits=3", "limits = 3: expected a section with the fields max_steps, max_output_tokens, "),
    ("limits.max_output_tokens=x", "= 'x': expected a whole number of at least 1, or null"),
    ("limits={1: 2}", "limits.1: the names of fields should be texts"),
    ("plugins=5", "plugins = 5: expected a list of entries; each is a text"),
    ("plugins=[5]", "plugins.0 = 5: expected a text"),
    ("plugins=./x.py", "plugins = './x.py': expected a list"),
    ("proposers=[]", "proposers = .*: expected a section of named entries"),
    ("proposers=null", "proposers = null: expected a section of named entries"),
    ("proposers.base=x", "base = 'x': expected a section with the fields policy, candidates, det"),
    (
        "proposers={1: {policy: {kind: fake, model: m}}}",
        "proposers.1: the name 1 should be a text: put it in quotes",
    ),
    ("proposers.base.candidates=true", "candidates = true: expected a whole number from 1 to 4096"),
    ("proposers.base.candidates=1.5", "candidates = 1.5: expected a whole number from 1 to 4096"),
    ("proposers.base.policy.evictor.budget=x", "budget = 'x': expected a whole number greater"),
    ("proposers.base.policy.evictor.budget=true", "budget = true: expected a whole number greater"),
    ("proposers.base.policy.evictor.protect_prompt=7", "= 7: expected true or false"),
    ("proposers.base.policy.model=[1]", r"model = \[1\]: expected a text"),
    ("proposers.base.policy.words=a", "words = 'a': expected a list of entries; each is a text"),
    ("proposers.base.policy.words=[a, 1]", "words.1 = 1: expected a text"),
    ("proposers.base.policy.extra=3", "extra = 3: expected a section with the fields depth"),
    ("proposers.base.policy.extras={x: 3}", "extras.x = 3: expected a section with the fields"),
    (
        "proposers.base.policy.extras={x: {depth: y}}",
        "extras.x.depth = 'y': expected a whole number",
    ),
    (
        "proposers.base.detectors=fake",
        "detectors = 'fake': expected a list of entries; each is one",
    ),
    ("proposers.base.detectors=[3]", "detectors.0 = 3: expected one detector: a section with"),
    ("sampling.top_p=2", "top_p = 2: expected a number greater than 0 and at most 1"),
    ("sampling.separator=''", "separator = '': expected a text that is not empty"),
    ("seed=null", "seed = null: expected a whole number$"),
    ("seed=1970-01-01", r"seed = datetime.date\(1970, 1, 1\): expected a whole number"),
    ("stop_at_answer=perhaps", "stop_at_answer = 'perhaps': expected true or false"),
    ("when_all_flagged=stpo", "expected 'stop' or 'redraw'; did you mean 'stop'"),
    ("scorer.kind=5", "scorer.kind: names no scorer"),
    ("scorer.level=[x]", "scorer.level = .*: expected a number"),
    (f"seed={'x' * 500}", "seed = 'x{70,80}...: expected a whole number"),
]
PYDANTICS_WORDS = ("Input should", "input should", "valid dictionary", "instance of", "parse")


@pytest.mark.parametrize(("override", "message"), WRONG)
def test_wrong_values_tell_path_value_and_reason(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(example(), override)
    assert type(caught.value) is ConfigError
    assert "\n" not in str(caught.value)
    assert not any(words in str(caught.value) for words in PYDANTICS_WORDS)


def test_what_is_expected_covers_every_field_of_the_library() -> None:
    """No field of ours is left to pydantic's words, whatever stands in it."""
    sections = [RescueConfig, ProposerConfig]
    sections += [PLUGINS.registry.load(e.kind, e.name) for e in PLUGINS.registry.entries()]
    for section in [*sections, Limits, Sampling]:
        for name in section.model_fields:
            found = []
            for value in ({"no such": ["thing"]}, [3.5]):  # one of them fits no field
                try:
                    with PLUGINS.registry.active():
                        validate(section, {name: value})
                except ValidationError as error:
                    found += [e for e in error.errors() if e["loc"][0] == name]
            assert found, (section, name)
            assert not any(words in line(e) for e in found for words in PYDANTICS_WORDS)


def test_missing_sections() -> None:
    with pytest.raises(
        ConfigError, match=r"proposers: missing; expected.*\nscorer: missing; expected"
    ):
        load({})
    with pytest.raises(ConfigError, match=r"base\.policy\.model: missing; expected a text"):
        load({"proposers": {"base": {"policy": "fake"}}, "scorer": "fake"})


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: " + "[" * 5000, "a: &a {b: *a}"])
def test_endless_nesting(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml: nested too deeply"):
        load(path)


def test_endless_nesting_in_an_override() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        load(example(), "limits=" + "[" * 5000)


def test_several_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(example(), "seed=x", "scorer.levle=1", "proposers.helper.candidates=0")
    lines = str(caught.value).splitlines()
    assert [line.partition(" =")[0].partition(":")[0] for line in lines] == [
        "proposers.helper.candidates",
        "scorer.levle",
        "seed",
    ]


def test_a_detector_that_refuses_its_options_keeps_its_class() -> None:
    with pytest.raises(DetectorError, match=r"detectors\.1: level 9\.0 can never be reached"):
        load(example(), "proposers.base.detectors.picky.level=9")


# -- overrides --------------------------------------------------------------------------------


def test_overrides_reach_everything() -> None:
    config = load(
        example(),
        "proposers.base.policy.evictor.window=7",
        "proposers.helper.policy.evictor={kind: oldest, budget: 9}",
        "proposers.helper.policy.evictor.window=3",
        "proposers.base.detectors.fake.level=3",
        "proposers.base.detectors.1.level=4",
        "limits.max_output_tokens=12",
        'sampling.separator="\\n"',
        "proposers.third={policy: {kind: fake, model: t}}",
        "seed = 5",
    )
    base, helper, third = config.proposers.values()
    assert isinstance(base.policy, FakeSpec)
    assert isinstance(helper.policy, FakeSpec)
    assert base.policy.evictor == FakeEvictor(budget=4, window=7)
    assert helper.policy.evictor == FakeEvictor(budget=9, window=3)
    assert base.detectors[0] == FakeDetector(level=3)
    assert base.detectors[1].model_dump() == {"level": 4}
    assert config.limits.max_output_tokens == 12
    assert config.sampling.separator == "\n"
    assert third.policy == FakeSpec(model="t")
    assert config.seed == 5


def test_an_override_opens_a_section_that_is_empty() -> None:
    config = load({**example(), "limits": None}, "limits.max_steps=3")
    assert config.limits.max_steps == 3


def test_an_override_never_changes_the_data_it_was_given() -> None:
    data = example()
    load(data, "proposers.base.policy.evictor.budget=5")
    assert data == example()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "should look like limits.max_steps=64"),
        ("=1", "should look like"),
        ("a..b=1", "should look like"),
        ("seed=[1", "is not YAML"),
        ("proposers.bsae.candidates=3", "no proposer 'bsae'; did you mean 'base'"),
        ("proposers.base.detectors.pick.level=3", "nothing at .*; did you mean 'picky'"),
        ("proposers.base.detectors.7.level=3", "nothing at proposers.base.detectors.7"),
        ("proposers.base.policy.model.x.y=3", "policy.model = .*: expected a text"),
        ("proposers.helper.candidates.x=3", "proposers.helper.candidates is 2 and has no 'x'"),
    ],
)
def test_overrides_that_cannot_be_applied(override: str, message: str) -> None:
    with pytest.raises(KVRescueError, match=message):
        load(example(), override)

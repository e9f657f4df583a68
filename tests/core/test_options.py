"""Options that are built directly, wrongly, raise a typed error that names field and value."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import kvrescue
from kvrescue import Limits, Sampling
from kvrescue.config import ProposerConfig, RescueConfig
from kvrescue.detectors import NgramDetector
from kvrescue.errors import ConfigError
from kvrescue.evictors import RKV
from kvrescue.options import Options, checked_by
from kvrescue.plugins import Plugins
from kvrescue.policies.specs import TorchPolicySpec, VLLMPolicySpec
from kvrescue.scorers.specs import QwenPRMSpec, VLLMPRMSpec


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: RKV(budget=0), "RKV: budget = 0"),
        (lambda: RKV(budget=4, window=-1), "RKV: window = -1"),
        (lambda: RKV(budget="x"), "RKV: budget = 'x'"),  # type: ignore[arg-type]
        (lambda: RKV(bugdet=4), "bugdet"),  # type: ignore[call-arg]
        (lambda: Sampling(temperature=-1), "Sampling: temperature = -1"),
        (lambda: Sampling(temperature=float("nan")), "temperature = nan"),
        (lambda: Limits(max_output_tokens=0), "Limits: max_output_tokens = 0"),
        (lambda: NgramDetector(min_count=0), "NgramDetector: min_count = 0"),
    ],
)
def test_wrong_options_are_typed_errors(build, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        build()


# -- booleans are no numbers ----------------------------------------------------------------------


def sections() -> list[type[BaseModel]]:
    registry = Plugins().registry
    found = [registry.load(entry.kind, entry.name) for entry in registry.entries()]
    return [*found, Limits, Sampling, ProposerConfig, RescueConfig]


NUMBERS = [
    pytest.param(section, name, id=f"{section.__name__}.{name}")
    for section in sections()
    for name, field in section.model_fields.items()
    if {int, float} & {field.annotation, *get_args(field.annotation)}
]


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(("section", "name"), NUMBERS)
def test_a_boolean_is_no_number(section: type[BaseModel], name: str, value: bool) -> None:
    with pytest.raises(ConfigError, match=rf"\b{name} = {value}: expected a .*number"):
        section(**{name: value})


def test_booleans_inside_containers_and_where_they_belong() -> None:
    class Deep(Options):
        counts: tuple[int, ...] = ()
        weights: dict[str, float | None] = {}  # noqa: RUF012 - pydantic copies it
        flag: bool = False
        either: bool | int = 0
        anything: Any = None
        choice: Literal[True, 3] = 3

    good = Deep(counts=(1,), weights={"a": 1}, flag=True, either=True, anything=True, choice=True)
    assert good.flag is good.either is good.anything is good.choice is True
    for wrong in ({"counts": (1, True)}, {"weights": {"a": False}}):
        with pytest.raises(ConfigError, match=f"Deep: {next(iter(wrong))} = "):
            Deep(**wrong)  # type: ignore[arg-type]


def test_words_for_python() -> None:
    with pytest.raises(ConfigError) as caught:
        Limits(max_output_tokens="x", max_step=3)  # type: ignore[arg-type, call-arg]
    assert str(caught.value) == (
        "Limits: max_output_tokens = 'x': expected a whole number of at least 1, or None; "
        "max_step: unknown field 'max_step'; did you mean 'max_steps'?"
    )


class Shape(Options):
    size: int = Field(ge=1)
    name: str | None = None
    part: int | None = None


class Thing:
    @checked_by(Shape, but=["part"])
    def __init__(self, size: int, *, name: str | None = None, part: object = None) -> None:
        self.size, self.name, self.part = size, name, part


def test_a_constructor_is_checked_as_its_options_are() -> None:
    thing = Thing(3, name="a", part="not looked at")
    assert (thing.size, thing.name, thing.part) == (3, "a", "not looked at")
    for arguments in ({"size": 0}, {"size": "x"}, {"size": True}, {"size": 3, "name": 5}):
        with pytest.raises(ConfigError) as direct:
            Thing(**arguments)
        with pytest.raises(ConfigError) as configured:
            Shape(**arguments)
        assert str(direct.value) == str(configured.value)


CHECKED: dict[type[Options], list[str]] = {
    TorchPolicySpec: ["evictor"],
    VLLMPolicySpec: ["evictor"],
    QwenPRMSpec: [],
    VLLMPRMSpec: [],
}
"""Specs that check a constructor, and what that checks itself."""
OPTIONS = [
    (spec, name) for spec, but in CHECKED.items() for name in spec.model_fields if name not in but
]
raw = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5000),
    st.floats(-1, 5000),
    st.sampled_from(["true", "false", "yes", "no", "on", "off", "1", "0", "", "auto", "raw", "x"]),
    st.integers(-2, 5000).map(str),
    st.dictionaries(st.sampled_from("ab"), st.integers(), max_size=2),
)


def received(spec: type[Options], **arguments: Any) -> dict[str, Any]:
    """What a constructor with a spec's parameters gets; the real one would load a model."""
    got: dict[str, Any] = {}

    def constructor(**found: Any) -> None:
        got.update(found)

    defaults = {n: f.get_default(call_default_factory=True) for n, f in spec.model_fields.items()}
    constructor.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d)
            for n, d in defaults.items()
        ]
    )
    checked_by(spec, but=CHECKED[spec])(constructor)(**arguments)
    return got


@given(st.sampled_from(OPTIONS), raw)
def test_a_constructor_gets_what_its_options_say(option: tuple[Any, str], value: Any) -> None:
    """A value means the same where it is passed and where it is configured."""
    spec, name = option
    given = {"model": "m", name: value}
    told: dict[str, Any] = {}
    for way, call in (("configured", spec), ("passed", functools.partial(received, spec))):
        try:
            found = call(**given)
        except ConfigError as error:
            told[way] = str(error)
        else:
            told[way] = found[name] if isinstance(found, dict) else getattr(found, name)
    assert told["passed"] == told["configured"]
    assert type(told["passed"]) is type(told["configured"])


def test_texts_that_stand_for_booleans() -> None:
    for text, value in (("false", False), ("off", False), ("true", True)):
        assert received(TorchPolicySpec, model="m", graphs=text)["graphs"] is value
        assert received(TorchPolicySpec, model="m", share_prefix=text)["share_prefix"] is value
    assert Thing("3").size == 3  # type: ignore[arg-type]


def test_all_checked_constructors_are_known() -> None:
    """Those of the law above are those of the package."""
    sources = {path: path.read_text() for path in Path(kvrescue.__file__).parent.rglob("*.py")}
    uses = sum(len(re.findall(r"^ +@checked_by\(", text, re.M)) for text in sources.values())
    assert uses == len(CHECKED)
    for spec, but in CHECKED.items():
        names = f", but={but!r}".replace("'", '"') if but else ""
        assert any(f"@checked_by({spec.__name__}{names})" in text for text in sources.values())


def test_a_checked_constructor_keeps_its_signature() -> None:
    assert list(inspect.signature(Thing).parameters) == ["size", "name", "part"]
    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'sise'"):
        Thing(3, sise=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument"):
        Thing()  # type: ignore[call-arg]

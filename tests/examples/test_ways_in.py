"""Every component of the examples, by every way in."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

import kvrescue
from kvrescue import load_config, plugins, presets
from kvrescue.errors import DependencyError
from kvrescue.plugins import Plugins
from kvrescue.registry import Kind, resolve_component
from tests.cli.run import Ran

ROOT = Path(__file__).parents[2]
COMPONENTS: list[tuple[str, Kind, str, str]] = [
    ("value_norm", "evictor", "value_norm", "ValueNorm"),
    ("loop_detector", "detector", "step_loop", "StepLoop"),
    ("kvpress_scorer", "evictor", "kvpress", "KVPress"),
]
every = pytest.mark.parametrize(("module", "kind", "name", "cls"), COMPONENTS)


@pytest.fixture
def fresh_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_default", None)


@every
def test_by_path(module: str, kind: Kind, name: str, cls: str) -> None:
    known = Plugins()
    known.load([f"./examples/{module}.py"], folder=ROOT)
    assert known.registry.load(kind, name).__name__ == cls


@every
def test_by_dotted_name(module: str, kind: Kind, name: str, cls: str) -> None:
    known = Plugins()
    known.load([f"examples.{module}"])
    found = importlib.import_module(f"examples.{module}")
    assert known.registry.load(kind, name) is getattr(found, cls)


@every
@pytest.mark.usefixtures("fresh_default")
def test_by_register(module: str, kind: Kind, name: str, cls: str) -> None:
    found = getattr(importlib.import_module(f"examples.{module}"), cls)
    assert kvrescue.register(found) == f"examples.{module}.{cls}"
    assert plugins.default().registry.load(kind, name) is found


@every
def test_in_a_configuration(module: str, kind: Kind, name: str, cls: str, tmp_path: Path) -> None:
    """`plugins:` of a file, with a path relative to it and with a dotted name."""
    (tmp_path / "mine.py").write_text((ROOT / "examples" / f"{module}.py").read_text())
    for listed in ("./mine.py", f"examples.{module}"):
        file = tmp_path / "run.yaml"
        file.write_text(f"plugins: [{listed}]\n" + presets.read("tiny"))
        known = Plugins()
        load_config(file, plugins=known)
        assert known.registry.load(kind, name).__name__ == cls


@every
@pytest.mark.usefixtures("fresh_default")
def test_on_the_command_line(module: str, kind: Kind, name: str, cls: str) -> None:
    path = str(ROOT / "examples" / f"{module}.py")
    ran = Ran("plugins", "show", kind, name, "--plugin", path, "--json")
    assert ran.code == 0, ran.stderr
    assert ran.json["plugin"] == path


def test_an_evictor_and_a_detector_of_a_configuration() -> None:
    known = Plugins()
    known.load(["examples.value_norm", "examples.loop_detector"])
    config = load_config(
        "tiny",
        [
            "proposers.base.policy.evictor={kind: value_norm, budget: 8, window: 4, p: 2}",
            "proposers.base.detectors=[{kind: step_loop, times: 3}]",
        ],
        plugins=known,
    )
    section = config.model_dump(mode="json")["proposers"]["base"]
    assert section["policy"]["evictor"]["p"] == 2
    assert section["detectors"] == [
        {"kind": "step_loop", "times": 3, "max_period": 8, "separator": "\n\n"}
    ]


@pytest.mark.skipif(importlib.util.find_spec("kvpress") is not None, reason="kvpress is installed")
def test_without_kvpress_the_error_says_how_to_install_it() -> None:
    known = Plugins()
    known.load(["examples.kvpress_scorer"])
    with (
        known.registry.active(),
        pytest.raises(DependencyError, match="make setup-kvpress") as found,
    ):
        resolve_component("evictor", {"kind": "kvpress", "press": "KnormPress", "budget": 8})
    assert isinstance(found.value.__cause__, ModuleNotFoundError)

"""Plugins by every way in, and what is refused on the way."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from kvrescue import hookimpl, plugins
from kvrescue.detectors.base import Detector
from kvrescue.errors import DependencyError, PluginError, UnknownNameError
from kvrescue.events import Event, RoundSkipped, StepCommitted, TrajectoryFinished
from kvrescue.hookspecs import Register
from kvrescue.plugins import Plugins
from kvrescue.registry import KINDS, current, resolve_component
from kvrescue.types import Candidate, CommittedStep, Question, Solution, SolutionStop, StopReason
from tests.core.fakes import FakeDetector

DETECTOR = """
from typing import ClassVar

from kvrescue import Detector, hookimpl


class {title}(Detector):
    kind: ClassVar[str] = "{name}"
    level: int = 3

    def start(self):
        raise NotImplementedError


@hookimpl
def kvrescue_register_detectors(register):
    register("{name}", {title})
"""


def write_plugin(folder: Path, name: str, text: str = DETECTOR) -> Path:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text.replace("{title}", name.title()).replace("{name}", name)))
    return path


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def fresh_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_default", None)


class Watcher:
    """Observes; an ordinary object as a plugin."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    @hookimpl
    def kvrescue_step_committed(self, event: StepCommitted) -> None:
        self.seen.append(event)

    @hookimpl(specname="kvrescue_trajectory_finished")
    def done(self, event: TrajectoryFinished) -> None:
        self.seen.append(event)


CANDIDATE = Candidate("base", 0, "a", (1,), StopReason.EOS)
COMMITTED = StepCommitted("q", CommittedStep(0, CANDIDATE, 1.0))
FINISHED = TrajectoryFinished(Solution(Question("q"), (), SolutionStop.EOS, 0))


# -- the ways in ------------------------------------------------------------------------------


def test_builtins_come_through_the_same_hooks() -> None:
    [info] = Plugins().describe()
    assert (info.name, info.origin) == ("builtins", "builtin")
    assert info.components["policy"] == ("torch", "vllm", "replay")
    assert set(info.components["evictor"]) == {
        "rkv",
        "snapkv",
        "h2o",
        "streaming_llm",
        "random",
        "none",
    }
    assert info.components["detector"] == ("entropy", "gzip", "ngram")
    assert info.components["scorer"] == (
        "qwen_prm",
        "vllm_prm",
        "http_prm",
        "likelihood",
        "replay",
    )
    assert len(info.hooks) == len(KINDS)


def test_in_process_a_class_a_module_and_an_object() -> None:
    known = Plugins()
    assert known.register(FakeDetector) == "tests.core.fakes.FakeDetector"
    module = ModuleType("my_plugin")
    exec(DETECTOR.format(title="Mine", name="mine"), module.__dict__)
    assert known.register(module) == "my_plugin"
    watcher = Watcher()
    assert known.register(watcher, name="watcher") == "watcher"
    found = {info.name: info for info in known.describe()}
    assert found["tests.core.fakes.FakeDetector"].components == {"detector": ("fake",)}
    assert found["my_plugin"].origin == "registered"
    assert found["my_plugin"].components == {"detector": ("mine",)}
    assert found["watcher"].hooks == ("kvrescue_step_committed", "kvrescue_trajectory_finished")
    assert found["watcher"].components == {}


def test_registering_the_same_thing_again_changes_nothing() -> None:
    known = Plugins()
    watcher = Watcher()
    for _ in range(2):
        known.register(FakeDetector)
        known.register(watcher)
    assert len(known.describe()) == 3
    # Another object of the same class is another plugin.
    assert known.register(Watcher()).endswith("Watcher#2")


def test_by_module_name(importable: Path) -> None:
    write_plugin(importable, "stutter")
    known = Plugins()
    for _ in range(2):
        known.load(["stutter"])
    assert known.registry.load("detector", "stutter").__name__ == "Stutter"
    assert [info.origin for info in known.describe()] == ["builtin", "explicit"]


def test_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_plugin(tmp_path / folder, "same", DETECTOR.replace("{name}", folder + "{name}"))
    known = Plugins()
    known.load(["./same.py"], "config", folder=tmp_path / "one")
    monkeypatch.chdir(tmp_path / "two")
    known.load(["./same.py", str(tmp_path / "two" / "same.py")])
    assert {"onesame", "twosame"} <= set(known.registry.names("detector"))
    assert len(known.describe()) == 3


@pytest.mark.usefixtures("fresh_default")
def test_by_environment(importable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plugin(importable, "left")
    write_plugin(importable, "right")
    monkeypatch.setenv(plugins.ENVIRONMENT, f" {path} , right,, ")
    found = {info.name: info.origin for info in plugins.default().describe()}
    assert found == {"builtins": "builtin", str(path): "environment", "right": "environment"}
    assert plugins.default() is plugins.default()
    assert "left" in current().names("detector")


@pytest.mark.usefixtures("fresh_default")
def test_a_bad_environment_fails_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.ENVIRONMENT, "not_a_module_at_all")
    for _ in range(2):
        with pytest.raises(PluginError, match="not_a_module_at_all"):
            plugins.default()


@pytest.mark.usefixtures("fresh_default")
def test_a_plugin_may_register_another_while_it_is_imported(
    importable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(
        importable,
        "outer",
        DETECTOR + "\nimport kvrescue\nkvrescue.register({title})\n",
    )
    monkeypatch.setenv(plugins.ENVIRONMENT, "outer")
    with pytest.raises(PluginError, match="registered already"):
        plugins.default()  # both register the same detector: refused, but no deadlock


def test_unmarked_functions_named_like_hooks_count() -> None:
    module = ModuleType("unmarked")
    exec(DETECTOR.format(title="Plain", name="plain").replace("@hookimpl", ""), module.__dict__)
    known = Plugins()
    known.register(module)
    assert "plain" in known.registry.names("detector")


def test_unregister_forgets_everything() -> None:
    known = Plugins()
    name = known.register(FakeDetector)
    known.unregister(name)
    assert "fake" not in known.registry.names("detector")
    assert len(known.describe()) == 1
    known.register(FakeDetector)
    with pytest.raises(PluginError, match="no plugin 'nobody'"):
        known.unregister("nobody")


# -- what is refused --------------------------------------------------------------------------


def no_op(register: Register) -> None: ...


@pytest.mark.parametrize("marked", [True, False])
def test_a_misspelt_hook_names_the_nearest(marked: bool) -> None:
    module = ModuleType("typo")
    function = hookimpl(no_op) if marked else no_op
    module.kvrescue_register_detector = function  # type: ignore[attr-defined]
    known = Plugins()
    with pytest.raises(
        PluginError,
        match="plugin 'typo': there is no hook 'kvrescue_register_detector'; "
        r"did you mean 'kvrescue_register_detectors'\?",
    ):
        known.register(module)
    assert len(known.describe()) == 1


def test_a_misspelt_specname_is_found_too() -> None:
    class Typo:
        @hookimpl(specname="kvrescue_step_comitted")
        def watch(self, event: Event) -> None: ...

    with pytest.raises(PluginError, match="did you mean 'kvrescue_step_committed'"):
        Plugins().register(Typo())


def test_a_plugin_without_hooks_is_refused() -> None:
    with pytest.raises(PluginError, match="implements no hook; hooks: kvrescue_register_policies"):
        Plugins().register(ModuleType("empty"))
    with pytest.raises(PluginError, match="a class but no component"):
        Plugins().register(Watcher)


def test_a_wrong_argument_is_refused() -> None:
    class Wrong:
        @hookimpl
        def kvrescue_step_committed(self, evnt: Event) -> None: ...

    with pytest.raises(PluginError, match=r"has no argument 'evnt'; it has 'event'$"):
        Plugins().register(Wrong())

    class Fine:
        @hookimpl
        def kvrescue_step_committed(self, event: Event, seen: int = 0, *more: int) -> None: ...

    Plugins().register(Fine())


def test_an_async_hook_is_refused() -> None:
    class Waits:
        async def kvrescue_step_committed(self, event: Event) -> None: ...

    class Yields:
        async def kvrescue_step_committed(self, event: Event) -> AsyncIterator[None]:
            yield

    known = Plugins()
    for plugin in (Waits(), Yields()):
        with pytest.raises(PluginError, match="kvrescue_step_committed is async"):
            known.register(plugin)
    assert len(known.describe()) == 1


def test_a_name_taken_names_both_plugins() -> None:
    class Again:
        @hookimpl
        def kvrescue_register_detectors(self, register: Register) -> None:
            register("extra", "somewhere:Extra")
            register("gzip", "somewhere:Gzip")

    known = Plugins()
    with pytest.raises(
        PluginError, match="plugin 'mine' registers the detector 'gzip', which plugin 'builtins'"
    ):
        known.register(Again(), name="mine")
    # Nothing of a plugin that failed stays behind.
    assert "extra" not in known.registry.names("detector")
    assert len(known.describe()) == 1


def defined() -> type[Detector]:
    """The same lines of code make a new class each time, as a cell of a notebook does."""

    class Cell(Detector):
        kind: ClassVar[str] = "cell"

    return Cell


def test_a_class_that_is_defined_anew_takes_the_place_of_the_former() -> None:
    known = Plugins()
    first, second = defined(), defined()
    name = known.register(first)
    assert known.register(second) == known.register(second) == name
    assert known.registry.load("detector", "cell") is second
    assert len(known.describe()) == 2

    third = defined()
    third.kind = "gzip"  # taken: nothing is changed
    with pytest.raises(PluginError, match=r"registered already: .*kvrescue\.unregister"):
        known.register(third)
    assert known.registry.load("detector", "cell") is second


def test_what_was_registered_can_be_taken_away() -> None:
    known = Plugins()
    watcher, made = Watcher(), defined()
    known.register(watcher)
    known.unregister(known.register(made))
    known.register(made)
    known.unregister(made)
    known.unregister(watcher)
    assert len(known.describe()) == 1
    assert "cell" not in known.registry.names("detector")
    for gone, text in ((watcher, "is not registered"), ("bultins", "did you mean 'builtins'")):
        with pytest.raises(PluginError, match=text):
            known.unregister(gone)


@pytest.mark.parametrize("turn", [1, -1])
def test_a_file_is_one_plugin_by_whatever_name(importable: Path, turn: int) -> None:
    write_plugin(importable, "twice")
    known = Plugins()
    made = ModuleType("made")  # of no file at all
    made.__dict__["kvrescue_step_committed"] = lambda event: None
    known.register(made)
    known.load(["twice", str(importable / "twice.py")][::turn])
    known.load(["twice", str(importable / "twice.py")])
    assert len(known.describe()) == 3
    assert "twice" in known.registry.names("detector")


def test_one_name_may_be_used_in_two_kinds() -> None:
    class Both:
        @hookimpl
        def kvrescue_register_scorers(self, register: Register) -> None:
            register("gzip", "somewhere:Gzip")

    Plugins().register(Both())


def test_a_plugin_name_taken() -> None:
    known = Plugins()
    known.register(Watcher(), name="me")
    with pytest.raises(PluginError, match="a plugin named 'me' is registered already"):
        known.register(Watcher(), name="me")


class Odd(Detector):
    kind: ClassVar[str] = "even"


@pytest.mark.parametrize(
    ("name", "component", "message"),
    [
        ("odd", Odd, "its `kind` is 'even': write `kind: ClassVar"),
        ("odd", dict, "must be a subclass of kvrescue.detectors.base.Detector"),
        ("odd", "module.Class", '"package.module:Class"'),
        ("", Odd, "without a name"),
    ],
)
def test_a_malformed_component(name: str, component: object, message: str) -> None:
    class Bad:
        @hookimpl
        def kvrescue_register_detectors(self, register: Register) -> None:
            register(name, component)  # type: ignore[arg-type]

    with pytest.raises(PluginError, match=message):
        Plugins().register(Bad())


def test_a_hook_that_fails_is_named_with_its_cause() -> None:
    class Bad:
        @hookimpl
        def kvrescue_register_detectors(self, register: Register) -> None:
            raise ZeroDivisionError("oops")

    with pytest.raises(
        PluginError, match=r"'bad' failed in kvrescue_register_detectors.*oops"
    ) as e:
        Plugins().register(Bad(), name="bad")
    assert isinstance(e.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import does_not_exist_anywhere", "ModuleNotFoundError.*does_not_exist_anywhere"),
        ("1 / 0", "ZeroDivisionError"),
        ("def (", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_plugin_that_cannot_be_imported(importable: Path, text: str, message: str) -> None:
    path = write_plugin(importable, "broken", text)
    for spec in ("broken", str(path)):
        with pytest.raises(PluginError, match=f"broken.*cannot be imported: {message}") as caught:
            Plugins().load([spec])
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__traceback__ is not None


def test_missing_plugins(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"no such file"):
        Plugins().load(["./nothing.py"], folder=tmp_path)
    with pytest.raises(PluginError, match=r"for a file, give its path: \./nothing_here\.py"):
        Plugins().load(["nothing_here"])
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(PluginError, match=r"must end in \.py"):
        Plugins().load([str(tmp_path / "text.txt")])


# -- lazy components --------------------------------------------------------------------------


def lazy(path: str) -> Plugins:
    class Lazy:
        @hookimpl
        def kvrescue_register_detectors(self, register: Register) -> None:
            register("fake", path)

    known = Plugins()
    known.register(Lazy(), name="lazy")
    return known


def test_a_lazy_component_is_imported_when_it_is_used() -> None:
    known = lazy("tests.core.fakes:FakeDetector")
    assert known.registry.load("detector", "fake") is FakeDetector
    with known.registry.active():
        assert resolve_component("detector", {"kind": "fake", "level": 2}) == FakeDetector(level=2)
        assert resolve_component("detector", "fake") == FakeDetector()


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("no_such_module:X", PluginError, "cannot be imported"),
        ("tests.core.no_such:X", PluginError, "cannot be imported"),
        ("tests.core.fakes:FakeDetectr", PluginError, "did you mean 'FakeDetector'"),
        ("tests.core.fakes:FakeScorer", PluginError, "must be a subclass"),
        ("needs_torch:X", DependencyError, r"pip install 'kvrescue\[torch\]'"),
        ("needs_other:X", DependencyError, "needs the package 'surely_not_there'"),
    ],
)
def test_a_lazy_component_that_cannot_be_loaded(
    importable: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    error: type[Exception],
    message: str,
) -> None:
    write_plugin(importable, "needs_torch", "import gguf.more")
    write_plugin(importable, "needs_other", "import surely_not_there.deep")
    if "torch" in path:
        monkeypatch.setitem(sys.modules, "torch", None)
        write_plugin(importable, "needs_torch", "import torch")
    with pytest.raises(error, match=message):
        lazy(path).registry.load("detector", "fake")


def test_unknown_kinds_name_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown detector 'gzp'; did you mean 'gzip'"):
        Plugins().registry.load("detector", "gzp")


# -- observers --------------------------------------------------------------------------------


def test_observers_get_their_events() -> None:
    known = Plugins()
    watcher = Watcher()
    known.register(watcher)
    observe = known.observer()
    for event in (COMMITTED, RoundSkipped("q", 0, 0, "empty", 1), FINISHED):
        observe(event)
    assert watcher.seen == [COMMITTED, FINISHED]


def test_an_observer_that_fails_is_named() -> None:
    class Bad:
        @hookimpl
        def kvrescue_step_committed(self, event: Event) -> None:
            raise ZeroDivisionError("oops")

    known = Plugins()
    known.register(Watcher(), name="good")
    known.register(Bad(), name="bad")
    with pytest.raises(PluginError, match=r"'bad' failed in kvrescue_step_committed.*oops"):
        known.observer()(COMMITTED)

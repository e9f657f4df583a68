"""Whatever a component raises: the error names it, has a type of ours and keeps the cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from kvrescue import Rescue
from kvrescue.config import load_config
from kvrescue.detectors.base import Detector, DetectorState, Source, TokenEvent
from kvrescue.errors import (
    CapacityError,
    ConfigError,
    DependencyError,
    DetectorError,
    KVRescueError,
    ModelLoadError,
    PluginError,
    PolicyError,
    ScorerError,
    located,
)
from kvrescue.plugins import Plugins
from kvrescue.policies.base import Policy, PolicySpec
from kvrescue.scorers.base import Scorer, ScorerSpec
from kvrescue.types import Verdict
from tests.core.fakes import FakeDetector, FakePolicy, FakeScorer, Habits

RAISED: dict[str, Callable[[], Exception]] = {}
"""By where: what the components below raise there."""


def at(where: str) -> None:
    if where in RAISED:
        raise RAISED[where]()


class PolicyOf(PolicySpec):
    kind: ClassVar[str] = "p"

    def build(self) -> Policy:
        at("policy")
        return FakePolicy(Habits(eos=1.0), trouble=at)


class ScorerOf(ScorerSpec):
    kind: ClassVar[str] = "s"

    def build(self) -> Scorer:
        at("scorer")
        return FakeScorer(trouble=at)


class State(DetectorState):
    def update(self, event: TokenEvent) -> Verdict | None:
        at("update")
        return None


class DetectorOf(Detector):
    kind: ClassVar[str] = "d"

    def start(self) -> DetectorState:
        at("start")
        return State()

    def check(self, source: Source) -> None:
        at("check")

    def model_post_init(self, _: Any) -> None:
        at("detector")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], Exception]], None]:
    return lambda where, raised: monkeypatch.setitem(RAISED, where, raised)


def solve() -> None:
    plugins = Plugins()
    for component in (PolicyOf, ScorerOf, DetectorOf):
        plugins.register(component)
    config = {
        "proposers": {"main": {"policy": "p", "candidates": 2, "detectors": ["d"]}},
        "scorer": "s",
    }
    with Rescue.from_config(load_config(config, plugins=plugins), plugins=plugins) as rescue:
        rescue.solve("q")


class OddError(PolicyError):
    """Whose constructor asks for more than a text."""

    def __init__(self, layer: int, *, card: str) -> None:
        super().__init__(f"layer {layer} on {card}")
        self.layer = layer


def own() -> Exception:
    error = ModelLoadError("no weights")
    error.__cause__ = OSError("disk")
    return error


@pytest.mark.parametrize(
    ("where", "path", "kind", "unknown"),
    [
        ("policy", "proposers.main.policy: ", "policy 'p'", PolicyError),
        ("scorer", "scorer: ", "scorer 's'", ScorerError),
        ("check", "proposer 'main': detector 'd': ", "detector 'd'", DetectorError),
        ("propose", "proposer 'main'", "", PolicyError),
        ("open", "proposer 'main'", "", PolicyError),
        ("close", "proposer 'main'", "", PolicyError),
        ("score", "the scorer FakeScorer", "", ScorerError),
        ("release", "the scorer FakeScorer", "", ScorerError),
    ],
)
def test_any_error_anywhere(
    failing: Any, where: str, path: str, kind: str, unknown: type[KVRescueError]
) -> None:
    failing(where, lambda: RuntimeError("boom"))
    with pytest.raises(unknown) as caught:
        solve()
    assert str(caught.value).startswith(path)
    assert kind in str(caught.value)
    assert str(caught.value).endswith("RuntimeError: boom")
    assert isinstance(caught.value.__cause__, RuntimeError)

    failing(where, own)
    with pytest.raises(ModelLoadError) as again:
        solve()
    assert str(again.value).startswith(path)
    assert str(again.value).endswith(": no weights")
    assert isinstance(again.value.__cause__, OSError)

    failing(where, lambda: OddError(3, card="gpu0"))
    with pytest.raises(OddError) as odd:
        solve()
    assert str(odd.value).startswith(path)
    assert odd.value.layer == 3


def test_a_missing_package_is_named_with_its_place(failing: Any) -> None:
    failing("policy", lambda: ModuleNotFoundError("No module", name="torch"))
    with pytest.raises(DependencyError, match=r"^proposers\.main\.policy: policy 'p' needs "):
        solve()


def test_options_that_a_component_stumbles_over(failing: Any) -> None:
    failing("detector", lambda: RuntimeError("boom"))
    with pytest.raises(PluginError, match=r"detector 'd' cannot read its options.*boom") as caught:
        solve()
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("where", ["start", "update"])
def test_a_detector_at_work(failing: Any, where: str) -> None:
    from kvrescue.detectors.bank import DetectorBank

    def work() -> None:
        DetectorBank([FakeDetector(), DetectorOf()]).update(TokenEvent(1, "a", 0.5))

    failing(where, lambda: RuntimeError("boom"))
    with pytest.raises(PolicyError, match=r"^detector 'd' failed: RuntimeError: boom$") as caught:
        work()
    assert isinstance(caught.value.__cause__, RuntimeError)
    failing(where, lambda: CapacityError("full"))
    with pytest.raises(CapacityError, match=r"^detector 'd': full$"):
        work()


def test_locating_an_error_leaves_it_as_it_is() -> None:
    """Several views may wait for one failure of an engine they share."""
    error = ConfigError("wrong")
    error.add_note("a note")
    one, other = located("here", error), located("there", error)
    assert (str(one), str(other), str(error)) == ("here: wrong", "there: wrong", "wrong")
    assert one.__notes__ == ["a note"]
    assert located("here", one) is one

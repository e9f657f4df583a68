"""Events and hooks belong together."""

from __future__ import annotations

import inspect
from typing import get_args

import pluggy
import pytest

from kvrescue import events, hookimpl, hookspecs
from kvrescue.errors import EvictorError
from kvrescue.events import Event, EvictionFired
from kvrescue.evictors.firing import Firing
from kvrescue.hooks import HOOKS as ALL_HOOKS
from kvrescue.plugins import Plugins

EVENTS = (*get_args(Event), EvictionFired)
HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if getattr(function, f"{hookspecs.PROJECT}_spec", None) is not None
}


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_has_its_hook(event: type) -> None:
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in event.__name__)
    hook = HOOKS[f"kvrescue{words}"]
    assert inspect.get_annotations(hook)["event"] == event.__name__
    known = Plugins()
    seen: list[object] = []

    class Watcher:
        @hookimpl(specname=hook.__name__)
        def watch(self, event: object) -> None:
            seen.append(event)

    known.register(Watcher())
    told = object.__new__(event)
    observer = known.eviction_observer() if event is EvictionFired else known.observer()
    assert observer is not None
    observer(told)  # type: ignore[arg-type]
    assert seen == [told]


def test_every_hook_is_documented_and_known() -> None:
    assert set(HOOKS) == set(ALL_HOOKS)
    for name, hook in HOOKS.items():
        assert inspect.getdoc(hook), name
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    assert {name for name in vars(manager.hook) if not name.startswith("_")} == set(HOOKS)


def test_evictions_are_no_part_of_traces() -> None:
    assert EvictionFired not in events._NAMES
    assert set(events._NAMES) == set(get_args(Event))


def test_nobody_listens_unless_a_plugin_has_the_hook() -> None:
    class Other:
        @hookimpl
        def kvrescue_round_skipped(self, event: events.RoundSkipped) -> None: ...

    known = Plugins()
    assert known.eviction_observer() is None
    known.register(Other())
    assert known.eviction_observer() is None


def test_positions_are_read_in_time_or_never() -> None:
    reads: list[int] = []
    kept: list[EvictionFired] = []

    def read() -> object:
        reads.append(1)
        return "positions"

    def fire(*, look: bool) -> None:
        def watch(firing: Firing) -> None:
            event = EvictionFired.of(firing, "q", 0, "base", 3)
            kept.append(event)
            if look:
                assert event.positions() == event.positions() == "positions"

        Firing("decode", 1, 2, 9, 7, read).tell(watch)  # type: ignore[arg-type]

    fire(look=True)
    assert kept[0].positions() == "positions"
    assert reads == [1]
    fire(look=False)
    assert reads == [1]
    with pytest.raises(EvictorError, match="before the hook returns"):
        kept[1].positions()
    event = kept[1]
    assert (event.question_id, event.seed, event.proposer, event.step) == ("q", 0, "base", 3)
    assert (event.when, event.candidate, event.dropped) == ("decode", 1, 2)
    assert (event.logical_length, event.physical_length) == (9, 7)

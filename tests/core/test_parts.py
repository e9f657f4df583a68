"""Parts: what several configurations share is built once, what nobody needs is closed."""

from __future__ import annotations

from typing import Any

from kvrescue.config import RescueConfig, load_config
from kvrescue.parts import Parts
from kvrescue.plugins import Plugins
from tests.core.components import fake_plugins


def config(plugins: Plugins, budget: int, scorer: dict[str, Any] | None = None) -> RescueConfig:
    base = {"kind": "fake", "model": "base", "evictor": {"kind": "oldest", "budget": budget}}
    helper = {"kind": "fake", "model": "helper"}
    data = {
        "proposers": {"base": {"policy": base}, "helper": {"policy": helper}},
        "scorer": scorer or {"kind": "fake"},
    }
    return load_config(data, plugins=plugins)


async def test_only_what_the_next_configuration_uses_stays_open() -> None:
    plugins, parts = fake_plugins(), Parts()
    first, second = config(plugins, 8), config(plugins, 16)
    base, helper = (proposer.policy for proposer in parts.proposers(first))
    scorer = parts.scorer(first.scorer)
    await parts.keep_only(second)
    assert (base.finished, helper.finished) == (True, False)  # type: ignore[attr-defined]
    other, again = (proposer.policy for proposer in parts.proposers(second))
    assert other is not base
    assert again is helper
    assert parts.scorer(second.scorer) is scorer
    await parts.keep_only(second)
    assert [proposer.policy for proposer in parts.proposers(second)] == [other, helper]
    await parts.aclose()
    assert not parts

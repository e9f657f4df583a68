"""Examples are loaded as anybody loads them, and forgotten afterwards."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

import kvrescue
from kvrescue import plugins

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["path", "name", "registered"])
def load(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Loads an example in one of the three ways; returns the options that the command needs."""
    monkeypatch.setattr(plugins, "_default", None)

    def options(name: str) -> list[str]:
        if request.param == "path":
            return ["--plugin", str(EXAMPLES / f"{name}.py")]
        if request.param == "name":
            return ["--plugin", f"examples.{name}"]
        kvrescue.register(importlib.import_module(f"examples.{name}"))
        return []

    return options

"""docs/testing.md shows what the code says."""

from __future__ import annotations

import inspect

import kvrescue.testing as kit
from tests.kit.example import DOCS, failure, tables


def test_the_failure_and_the_laws_are_shown_verbatim() -> None:
    text = DOCS.read_text()
    assert f"```\n{failure()}\n```" in text
    assert tables() in text


def test_every_option_is_named() -> None:
    text = DOCS.read_text()
    for name in kit.__all__:
        if name.startswith("check_"):
            parameters = list(inspect.signature(getattr(kit, name)).parameters)
            row = next(line for line in text.splitlines() if line.startswith(f"| `{name}("))
            assert f"`{name}({parameters[0]})`" in row
            for option in parameters[1:]:
                assert f"`{option}" in row, (name, option)

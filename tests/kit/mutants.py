"""What every test of a mutant asks: the kit catches it, and by the right law."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvrescue.testing import LawBroken

NOISE = ("Falsifying", "hypothesis", "reproduce_failure", "Explanation")


def caught(check: Callable[[], object], law: str) -> LawBroken:
    """The breach that `check` raises, which must be one of `law`."""
    with pytest.raises(LawBroken) as raised:
        check()
    found = raised.value
    text = str(found)
    assert found.law.name == law, text
    for part in (f"the law {law!r}", found.law.rule, found.law.meaning, found.law.way_out):
        assert part in text
    for part in ("  seen ", "  expected "):
        assert part in text
    assert not any(word in text for word in NOISE), text
    assert not getattr(found, "__notes__", None)
    return found

"""Members of the suite that do nothing, or worse."""

from __future__ import annotations

from benchmarks.members import MEMBERS, Member

__all__ = ["FAKES", "install"]

FAKES = {
    name: Member(name, f"it {name}", f"tests.benchmarks.fakes.{name}", limit=60)
    for name in ("passes", "fails", "dies", "hangs", "lies", "again")
}


def install() -> None:
    """The suite has these members and no others."""
    MEMBERS.clear()
    MEMBERS.update(FAKES)

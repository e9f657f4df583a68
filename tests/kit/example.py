"""Prints the failure and the tables of laws of docs/testing.md: python -m tests.kit.example"""

from __future__ import annotations

from pathlib import Path

from kvrescue.testing import LAWS, LawBroken, check_evictor
from tests.kit.test_evictor_mutants import unchecked, window_by_score

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"


def failure() -> str:
    """What `check_evictor` says of the evictor whose window is protected by score."""
    try:
        check_evictor(unchecked(window_by_score))
    except LawBroken as broken:
        return str(broken)
    raise RuntimeError("the mutant passed")


def tables() -> str:
    """Every law with its rule and what its breach means, one table per component."""
    parts = []
    for kind, laws in LAWS.items():
        head = "| law | what must hold | in a run |"
        lines = [f"### {kind.capitalize()}", "", head, "|---|---|---|"]
        lines += [f"| `{law.name}` | {law.rule} | {law.meaning} |" for law in laws]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(failure(), tables(), sep="\n\n")

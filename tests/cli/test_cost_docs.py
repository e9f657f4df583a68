"""docs/cost.md names every claim that does not come out (its outputs: tests/docs)."""

from __future__ import annotations

import re
from pathlib import Path

from kvrescue.evaluation.paper.check import check_paper

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"


def test_claims_that_do_not_come_out_are_all_listed() -> None:
    rows = re.findall(r"^\| (?!claim|---)(.*?) \|", PAGE.read_text(), flags=re.MULTILINE)
    assert len(rows) == sum(claim.agrees is False for claim in check_paper())

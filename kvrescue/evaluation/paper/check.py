"""The paper's claims, computed again from its own tables and equations.

A claim agrees when what comes out, rounded like the stated number, is that number. Claims that rest
on figures alone cannot be checked and say so.
"""

from __future__ import annotations

from kvrescue.evaluation.paper.appendix import appendix_claims
from kvrescue.evaluation.paper.claims import Claim
from kvrescue.evaluation.paper.results import result_claims

__all__ = ["check_paper"]


def check_paper() -> tuple[Claim, ...]:
    """All claims: first those about results, then those about costs."""
    return (*result_claims(), *appendix_claims())

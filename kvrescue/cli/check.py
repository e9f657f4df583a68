"""Check: what one check of `kvrescue doctor` found, and a way out that several share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvrescue.kernels import ENVIRONMENT

__all__ = ["Check", "Status", "kernels_way_out"]

Status: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """What one check found, and the way out where something has to be done."""

    name: str
    status: Status
    detail: str
    way_out: str | None = None


def kernels_way_out(told: str) -> str | None:
    """What to do about an error that blames the choice of kernels, whoever met it; None: another
    error."""
    return f"set {ENVIRONMENT}=auto, or unset it" if ENVIRONMENT in told else None

"""Check: what one check of `kvrescue doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Check", "Status"]

Status: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """What one check found, and the way out where something has to be done."""

    name: str
    status: Status
    detail: str
    way_out: str | None = None

"""Choices that options offer, importable without torch."""

from __future__ import annotations

from typing import Literal

__all__ = ["DType", "Template", "no_shared_prefix"]

DType = Literal["auto", "float32", "bfloat16", "float16"]
Template = Literal["chat", "raw"]


def no_shared_prefix(*, evicts: bool, graphs: bool) -> str | None:
    """Why candidates of such a policy cannot share their prefix; None: they can."""
    if evicts:
        return "an evictor: every candidate loses other entries"
    return "graphs = True: a captured step has a row for each candidate" if graphs else None

"""The same call by torch and by kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kvrescue import kernels

T = TypeVar("T")


def both(function: Callable[[], T]) -> tuple[T, T]:
    """What `function` gives with torch, and what it gives with interpreted kernels."""
    with kernels.using("off"):
        expected = function()
    with kernels.using("on"):
        return expected, function()

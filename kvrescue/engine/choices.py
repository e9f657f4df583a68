"""Choices that options offer, importable without torch."""

from __future__ import annotations

from typing import Literal

__all__ = ["DType", "Template"]

DType = Literal["auto", "float32", "bfloat16", "float16"]
Template = Literal["chat", "raw"]

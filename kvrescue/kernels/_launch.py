"""Launching on the right device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["on_its_device"]

P = ParamSpec("P")
T = TypeVar("T")


def on_its_device(
    function: Callable[Concatenate[Tensor, P], T],
) -> Callable[Concatenate[Tensor, P], T]:
    """Make the first argument's GPU the current one meanwhile: Triton launches on that."""

    @functools.wraps(function)
    def run(first: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not first.is_cuda:
            return function(first, *args, **kwargs)
        with torch.cuda.device(first.device):
            return function(first, *args, **kwargs)

    return run

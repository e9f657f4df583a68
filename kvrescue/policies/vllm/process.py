"""The process around an engine, which vLLM changes when one starts: kept as its program had it."""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import torch
from vllm import envs
from vllm.utils.torch_utils import OMP_NUM_THREADS_SET_BY_VLLM

__all__ = ["OMP_NUM_THREADS", "heap_kept", "process_kept", "told", "threads_agreed"]

OMP_NUM_THREADS: Final = "OMP_NUM_THREADS"


def threads_agreed() -> None:
    """Give this thread the process's number of threads (torch.set_num_threads) before vLLM counts.

    OpenMP counts for each thread, and torch tells a new one only at its first parallel operation:
    vLLM on a CPU would plan a step's attention for one number, and fail when it runs with another.
    """
    torch.get_num_threads()  # tells it, as every use of torch's number does


@contextlib.contextmanager
def process_kept(*, ranks: int) -> Iterator[None]:
    """What the program may have set or drawn is as before, once an engine has started or failed.

    vLLM seeds the generators of the whole process, and on a CPU turns off torch.set_num_threads.
    Where ranks compute in processes of their own, it leaves this one a single thread.

    Args:
        ranks: of the engine; one runs in this process, and computes with its threads.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    kept = {name: os.environ.get(name) for name in (OMP_NUM_THREADS, OMP_NUM_THREADS_SET_BY_VLLM)}
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        torch.set_num_threads = set_num_threads
        if ranks > 1 and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        _set(kept)


@contextlib.contextmanager
def heap_kept() -> Iterator[None]:
    """vLLM takes all that lives from the collection of garbage when an engine starts, which would
    then find no policy that was dropped, and gives back also what others took when one ends."""
    freeze, unfreeze = gc.freeze, gc.unfreeze
    gc.freeze = gc.unfreeze = lambda: None
    try:
        yield
    finally:
        gc.freeze, gc.unfreeze = freeze, unfreeze


@contextlib.contextmanager
def told(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables as vLLM and processes started meanwhile see them.

    vLLM remembers what it has read while an engine lives; it looks again, here and afterwards.
    """
    kept = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    envs.disable_envs_cache()
    try:
        yield
    finally:
        _set(kept)
        envs.disable_envs_cache()
    envs.enable_envs_cache()  # as an engine that has started leaves it


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

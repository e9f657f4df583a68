"""Kernels, and whether they are used: Triton's on a GPU, numba's on a CPU.

Each kernel computes what a torch function computes. That function stays the reference, and calls
the kernel where `available` says so: `RKV.score`, `engine.moves.compact`, `move` and `move_at`, and
`engine.sampler.token_statistics`.

`KVRESCUE_KERNELS` chooses: `auto` (the default) takes kernels on CUDA devices where Triton works,
`off` never, and with `on` it is an error where a device has none. On the CPU Triton interprets
kernels if `TRITON_INTERPRET=1` is set before Python starts, and they are `on`: slow, for tests.

`compiled` is about the CPU: scores that R-KV and SnapKV keep up to date from token to token. numba
compiles them where it is installed, unless kernels are `off`; with `on` it is an error where it is
not.

Importing this package imports neither torch nor triton nor numba.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from kvrescue.errors import ConfigError, DependencyError, nearest
from kvrescue.kernels import states

if TYPE_CHECKING:
    import torch

__all__ = [
    "ENVIRONMENT",
    "Choice",
    "available",
    "choice",
    "compiled",
    "interpreted",
    "require",
    "using",
]

ENVIRONMENT: Final = "KVRESCUE_KERNELS"
"""The environment variable that chooses."""
Choice: TypeAlias = Literal["auto", "on", "off"]
"""What it may be."""

_OLDEST: Final = (8, 0)  # compute capability; what the kernels are compiled for in tests

_chosen: tuple[list[Choice], ...] = ()
"""Of every open block of `using` what it chooses, in a list of its own: that is how it is found."""
_entering = threading.Lock()


@contextlib.contextmanager
def using(choice: Choice) -> Iterator[None]:
    """Within the block, and in the whole process, `choice` counts instead of the environment.

    Where blocks of several threads overlap, the one that was entered last counts while it is open.

    Raises:
        ConfigError: `choice` is unknown.
    """
    global _chosen
    block = [_checked("using", choice)]
    with _entering:
        _chosen = (*_chosen, block)
    try:
        yield
    finally:
        with _entering:
            _chosen = tuple(other for other in _chosen if other is not block)


def choice() -> Choice:
    """What is chosen: by `using`, or else by the environment.

    Raises:
        ConfigError: the environment's choice is unknown.
    """
    blocks = _chosen
    if blocks:
        return blocks[-1][0]
    return _checked(ENVIRONMENT, os.environ.get(ENVIRONMENT) or "auto")


def require(device: torch.device) -> None:
    """Where kernels are chosen with `on`, fail now and not in the middle of the work.

    Raises:
        DependencyError: as `available` and `compiled` do on `device`.
        ConfigError: the same.
    """
    if choice() == "on":
        available(device)
        compiled(device)


def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def available(device: torch.device) -> bool:
    """Whether kernels are to be used for tensors on `device`.

    Raises:
        DependencyError: kernels are chosen with `on`, and triton is missing or does not work here.
        ConfigError: they are chosen for a device that has none, or the choice is unknown.
    """
    chosen = choice()
    if chosen == "off" or (chosen == "auto" and device.type != "cuda"):
        return False
    why = _obstacle(device.type, device.index)
    if why is None:
        return True
    if chosen == "on":
        raise why
    return False


def compiled(device: torch.device) -> bool:
    """Whether what numba compiles for the CPU is to be used for tensors on `device`.

    Raises:
        DependencyError: kernels are chosen with `on`, `device` is the CPU, and numba is missing or
            does not work here.
        ConfigError: the choice is unknown.
    """
    chosen = choice()
    if chosen == "off" or device.type != "cpu":
        return False
    why = _numba_obstacle()
    if why is not None and chosen == "on":
        raise why
    return why is None


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # imported already, and without a spec: using it tells more
        return True


@functools.cache
def _numba_obstacle() -> DependencyError | None:
    """Why numba cannot be used; None where it can be."""
    if not _installed("numba"):
        return DependencyError(
            f"{ENVIRONMENT}=on: numba is not installed; pip install 'kvrescue[kernels]', or set "
            f"{ENVIRONMENT}=auto"
        )
    if _installed("vllm"):
        # vLLM 0.32 for CPUs looks through every module for kernels to replace, and trips over
        # llvmlite's: an engine cannot be made in a process that has loaded numba.
        return DependencyError(
            f"{ENVIRONMENT}=on: vLLM is installed, whose engine for CPUs does not start beside "
            f"numba; set {ENVIRONMENT}=auto, or use an environment without vLLM"
        )
    try:
        _try_compiled()
    except (Exception, SystemExit) as error:  # a NumPy that numba does not know yet, ...
        text = f"numba does not work here: {type(error).__name__}: {error}"
        kept = _kept_in()
        way_out = f"if what numba keeps in {kept} is damaged, delete it; " if kept else ""
        warnings.warn(
            f"{text}; kvrescue computes with torch instead ({way_out}{ENVIRONMENT}=off says so "
            "without this warning)",
            RuntimeWarning,
            stacklevel=3,
        )
        found = DependencyError(f"{ENVIRONMENT}=on: {text}; {way_out}set {ENVIRONMENT}=off")
        found.__cause__ = error
        return found
    return None


def _kept_in() -> str | None:
    """The folder of what is compiled, where there is one."""
    try:
        from kvrescue.kernels._tracked import rkv_pairs

        folder = rkv_pairs.stats.cache_path
    except (Exception, SystemExit):  # numba cannot be imported, or is told to compile nothing
        return None
    return str(folder) if folder else None


def _try_compiled() -> None:
    """Compile and run what there is, on a cache of two entries. Raises whatever is wrong."""
    import torch

    from kvrescue.kernels import _tracked, tracked

    # Of the caller's defaults of dtype and device none counts.
    real = functools.partial(torch.tensor, dtype=torch.float32, device="cpu")
    whole = functools.partial(torch.tensor, dtype=torch.int64, device="cpu")
    keys, order = real([[[[1.0, 0.0], [0.0, 1.0]]]]), whole([[[0, 1]]])
    state = {
        "inverse": real([[[1.0, 1.0]]]),
        "match": torch.tensor([[[states.NONE] * 2]], dtype=torch.int32, device="cpu"),
        "similarity": real([[[0.0, 0.0]]]),
        "seen": real([[[[0.0], [0.0]]]]),
        "total": real([[[1.0, 0.0]]]),
    }
    scores = tracked.score_rkv(
        keys,
        keys[:, :, 1:],
        order,
        whole([2]),
        state,
        new=1,
        window=1,
        kernel_size=1,
        lam=1.0,
        threshold=0.5,
    )
    tracked.drop(keys, order, state, order[:, :, :1], order[:, :, 1:])
    found, total = scores.tolist(), state["total"].tolist()
    if found != [[[1.0, 0.0]]] or total != [[[0.0, 1.0]]]:
        raise RuntimeError(f"two entries scored {found} and left {total}")
    if not all(_tracked.KEPT):
        warnings.warn(
            "numba finds no folder to keep what it compiles in, so every process compiles again, "
            "for many seconds: let NUMBA_CACHE_DIR name a folder that can be written",
            RuntimeWarning,
            stacklevel=4,
        )


@functools.cache
def _obstacle(kind: str, index: int | None) -> DependencyError | ConfigError | None:
    """Why there are no kernels on a device; None where there are."""
    if not _installed("triton"):
        return DependencyError(
            f"{ENVIRONMENT}=on: triton is not installed; pip install 'kvrescue[kernels]' (torch "
            f"for CUDA brings it), or set {ENVIRONMENT}=auto"
        )
    if kind == "cpu":
        if interpreted():
            return None
        return ConfigError(
            f"{ENVIRONMENT}=on: a tensor is on the CPU, where kernels are only interpreted; set "
            f"TRITON_INTERPRET=1 before Python starts, or {ENVIRONMENT}=auto"
        )
    if kind != "cuda":
        return ConfigError(
            f"{ENVIRONMENT}=on: a tensor is on a {kind!r} device; kernels are for CUDA: set "
            f"{ENVIRONMENT}=auto"
        )
    return _obstacle_on_cuda(index)


def _obstacle_on_cuda(index: int | None) -> DependencyError | None:
    import torch

    device = torch.device("cuda" if index is None else f"cuda:{index}")
    if not torch.cuda.is_available():
        return DependencyError(
            f"{ENVIRONMENT}=on: torch {torch.__version__} finds no CUDA device; set "
            f"{ENVIRONMENT}=auto"
        )
    major, minor = torch.cuda.get_device_capability(device)
    if torch.version.hip is not None or (major, minor) < _OLDEST:
        return DependencyError(
            f"{ENVIRONMENT}=on: {torch.cuda.get_device_name(device)} (compute capability "
            f"{major}.{minor}) is none of the NVIDIA GPUs from {_OLDEST[0]}.{_OLDEST[1]} on that "
            f"kernels are made for; set {ENVIRONMENT}=auto"
        )
    try:
        _try(device)
    except (Exception, SystemExit) as error:  # a missing compiler, a driver that is too old, ...
        text = f"Triton does not work on {device}: {type(error).__name__}: {error}"
        warnings.warn(f"{text}; kvrescue computes with torch instead", RuntimeWarning, stacklevel=2)
        found = DependencyError(f"{ENVIRONMENT}=on: {text}; set {ENVIRONMENT}=off")
        found.__cause__ = error
        return found
    return None


def _try(device: torch.device) -> None:
    """Compile and run a small kernel. Raises whatever is wrong."""
    import torch

    from kvrescue.kernels.compaction import move

    values = torch.tensor([[1.0], [2.0]], dtype=torch.float32, device=device)
    source, target = torch.tensor([[1], [0]], dtype=torch.int64, device=device)
    move(values, source, target)
    if values.tolist() != [[2.0], [2.0]]:
        raise RuntimeError(f"a kernel that copies 2.0 over 1.0 left {values.tolist()}")


def _checked(where: str, choice: str) -> Choice:
    known = next((name for name in get_args(Choice) if name == choice), None)
    if known is not None:
        return cast("Choice", known)
    raise ConfigError(f"{where} = {choice!r}{nearest(choice, get_args(Choice))}")

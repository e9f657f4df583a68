"""The checks of `kvrescue doctor`; each returns what it found and, where needed, the way out."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import socket
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final
from urllib.parse import urlsplit

from kvrescue.cli.check import Check, kernels_way_out
from kvrescue.cli.console import counted
from kvrescue.cli.vllm_checks import companion_checks, vllm_checks, vllm_extra
from kvrescue.errors import KVRescueError

__all__ = ["Check", "run_checks"]

_EXTRAS: Final = {
    "torch": ("numpy", "safetensors", "torch", "transformers"),
    "smollm2": ("gguf",),
    "eval": ("math_verify", "scipy"),
}
"""Extras with the packages that show that they are installed."""

_HUB: Final = "https://huggingface.co"
_HUB_SECONDS: Final = 2.0
_SELF_TEST_TOKENS: Final = 24


_REINSTALL: Final = "install the versions that docs/vllm.md names in a fresh environment"


def run_checks() -> list[Check]:
    """Everything, cheap checks first; what a check itself raises is a failed check."""
    checks = [_versions(), *(_extra(name) for name in _EXTRAS), vllm_extra(), _plugins(), _hub()]
    if not _installed("torch", "transformers"):
        return checks
    broken = companion_checks()
    way_out = " and ".join(str(check.way_out) for check in broken) or None
    checks += [_devices(), *broken, _guarded("kernels", _kernels, None)]
    checks += [_guarded(name, run, way_out) for name, run in _SELF_TESTS.items()]
    return checks + vllm_checks(way_out or _REINSTALL)


def _guarded(name: str, run: Callable[[], Check], way_out: str | None) -> Check:
    """What `run` finds; `way_out` is that of something broken that it needs."""
    try:
        return run()
    except KVRescueError as error:
        return Check(
            name,
            "fail",
            f"{type(error).__name__}: {error}",
            kernels_way_out(str(error)) or way_out or "reinstall kvrescue: a file is bad",
        )
    except Exception as error:
        return Check(
            name,
            "fail",
            f"unexpected {type(error).__name__}: {error}",
            way_out or "compare the versions above with docs/dependencies.md, and report this",
        )


def _installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _versions() -> Check:
    import kvrescue

    found = {"kvrescue": kvrescue.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "safetensors", "pydantic", "typer"):
        found[package] = _version(package)
    detail = ", ".join(f"{name} {version}" for name, version in found.items())
    return Check("versions", "ok", detail)


def _extra(name: str) -> Check:
    missing = [package for package in _EXTRAS[name] if not _installed(package)]
    if missing:
        return Check(
            f"extra [{name}]",
            "warn",
            f"not installed: {', '.join(missing)}",
            f"pip install 'kvrescue[{name}]'",
        )
    return Check(f"extra [{name}]", "ok", "installed")


def _plugins() -> Check:
    from kvrescue import plugins as layer

    try:
        described = layer.default().describe()
    except KVRescueError as error:
        return Check("plugins", "fail", str(error), f"mend or unset {layer.ENVIRONMENT}")
    return Check("plugins", "ok", ", ".join(info.name for info in described))


def _hub() -> Check:
    """Whether models can be downloaded; the tiny trio never needs it."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "0").lower() in ("1", "true", "yes", "on"):
            return Check(
                "hub", "warn", f"offline: {variable} is set", "unset it to download models"
            )
    address = urlsplit(os.environ.get("HF_ENDPOINT") or _HUB)
    host = address.hostname or ""
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((host, port), _HUB_SECONDS).close()
    except (OSError, ValueError) as error:
        return Check(
            "hub",
            "warn",
            f"{host} cannot be reached: {error}",
            "use local folders, or set HF_ENDPOINT to a mirror",
        )
    return Check("hub", "ok", f"{host} can be reached")


def _devices() -> Check:
    import torch

    cpu = f"CPU with {torch.get_num_threads()} of {os.cpu_count()} threads"
    if not torch.cuda.is_available():
        return Check("devices", "ok", f"{cpu}, no CUDA")
    cards = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        cards.append(f"{properties.name} ({properties.total_memory / 2**30:.0f} GiB)")
    return Check("devices", "ok", f"{cpu}; CUDA {torch.version.cuda}: {', '.join(cards)}")


def _kernels() -> Check:
    """Where kernels compute what torch computes otherwise.

    Raises:
        KVRescueError: the choice is unknown, or is `on` where a device has none.
    """
    import torch

    from kvrescue import kernels

    cpu = torch.device("cpu")
    cards = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        used = ["Triton, interpreted, on the CPU"] if kernels.available(cpu) else []
        used += ["numba on the CPU"] if kernels.compiled(cpu) else []
        used += [f"Triton on {card}" for card in cards if kernels.available(card)]
    if told:
        detail = "; ".join([*(str(one.message) for one in told), *used])
        return Check("kernels", "warn", detail, f"mend it, or set {kernels.ENVIRONMENT}=off")
    if used or kernels.choice() == "off":
        return Check("kernels", "ok", ", ".join(used) or f"none: {kernels.ENVIRONMENT}=off")
    if _installed("vllm"):
        return Check("kernels", "ok", "none: numba is not used where vLLM is installed")
    return Check(
        "kernels",
        "warn",
        "none: torch computes everything, eviction after every token more slowly",
        "pip install 'kvrescue[kernels]'",
    )


# -- self-tests on the tiny trio --------------------------------------------------------------


def _generator(model: str) -> Check:
    """The engine must write what transformers' own greedy generation writes."""
    from kvrescue.engine.reference import greedy_tokens
    from kvrescue.evaluation.bill import bill_at
    from kvrescue.pipeline import Rescue

    started = time.monotonic()
    question = bill_at("test", 0, 0).question
    config = {
        "proposers": {"model": {"policy": {"kind": "torch", "model": model, "device": "cpu"}}},
        "scorer": {"kind": "likelihood", "model": model, "device": "cpu"},
        "sampling": {"temperature": 0.0},
        "limits": {"max_output_tokens": _SELF_TEST_TOKENS},
    }
    with Rescue.from_config(config) as rescue:
        policy: Any = rescue.selector.proposers[0].policy
        solution = rescue.solve(question)
        prompt = policy.prompt_ids(solution.question)
        ours = [token for step in solution.steps for token in step.candidate.token_ids]
    theirs = greedy_tokens(model, prompt, len(ours))
    if ours != theirs:
        return Check(
            model,
            "fail",
            f"the engine wrote {ours}, transformers wrote {theirs}",
            "use the tested versions of torch and transformers (docs/dependencies.md)",
        )
    seconds = time.monotonic() - started
    return Check(
        model,
        "ok",
        f"{counted(len(ours), 'greedy token')} equal to transformers' own, {seconds:.1f} s",
    )


def _reward_model() -> Check:
    """The PRM must tell a right first step from a wrong one."""
    from kvrescue.evaluation.bill import bill_at, look_up_step
    from kvrescue.scorers.qwen_prm import QwenPRM
    from kvrescue.types import SEPARATOR, Candidate, Context, Question, StopReason

    bill = bill_at("test", 0, 0)
    right = bill.steps[0]
    price = dict(bill.prices)[bill.purchases[0]]
    wrong = look_up_step(1, bill.purchases[0], price % 20 + 1)
    candidates = [
        Candidate("check", index, text + SEPARATOR, (), StopReason.SEPARATOR)
        for index, text in enumerate((right, wrong))
    ]

    async def score() -> list[float]:
        scorer = QwenPRM("tiny/prm", device="cpu")
        context = Context(Question(bill.question))
        try:
            return await scorer.score(context, candidates)
        finally:
            await scorer.release(context)
            await scorer.aclose()

    scores = asyncio.run(score())
    detail = f"right step {scores[0]:.3f}, wrong step {scores[1]:.3f}"
    if not scores[0] > 0.5 > scores[1]:
        return Check("tiny/prm", "fail", detail, "reinstall kvrescue: the checkpoint is not whole")
    return Check("tiny/prm", "ok", detail)


_SELF_TESTS: Final[dict[str, Callable[[], Check]]] = {
    "tiny/base": lambda: _generator("tiny/base"),
    "tiny/helper": lambda: _generator("tiny/helper"),
    "tiny/prm": _reward_model,
}

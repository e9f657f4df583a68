"""What the kernels take of a GPU: registers, spills and shared memory, found without a GPU.

Triton compiles a kernel for an architecture without having one, and NVIDIA's `cuobjdump`, which the
triton package carries, tells what the machine code takes. `python -m kvrescue.kernels` prints the
table.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvrescue.errors import ConfigError
from kvrescue.kernels import (
    _compaction,
    _matches,
    _rkv,
    _vocabulary,
    compaction,
    interpreted,
    rkv,
    vocabulary,
)

__all__ = ["ARCHITECTURES", "CASES", "Case", "Resources", "measure", "table"]

ARCHITECTURES: Final = (80, 90)
"""Compute capabilities times ten: A100 and H100."""

_NAMES: Final = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel with the types and tiles that it is launched with."""

    kernel: str
    """Its name without `_kernel`."""
    variant: str
    """What distinguishes it from its other cases."""
    function: Any
    """What `triton.jit` made of it."""
    types: Mapping[str, str]
    """Of its arguments, in Triton's notation; the others are constants."""
    constants: Mapping[str, Any]
    """The values of the others."""
    warps: int
    """Of a program."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one case takes of one architecture."""

    case: Case
    architecture: int
    """Compute capability times ten."""
    registers: int
    """Per thread; there are 255 at most."""
    stack: int
    """Bytes per thread in memory, to which registers spill; 0 when none does."""
    shared: int
    """Bytes of shared memory per program."""
    size: int
    """Bytes of the cubin."""


def _cases() -> Iterator[Case]:
    floats = dict.fromkeys(("inverse", "total", "largest", "weight", "similarity"), "*fp32")
    floats |= dict.fromkeys(("again", "seen", "out", "moment"), "*fp32")
    shape = dict.fromkeys(("length", "window", "observed", "kv_heads", "kernel_size"))
    sizes = dict.fromkeys(shape, "i32") | {"scale": "fp32", "threshold": "fp32", "lam": "fp32"}
    strides = {
        f"{of}_stride": "i32"
        for of in (
            *("key_row", "key_head", "key_entry", "query_row", "query_head", "query_time"),
            *("position_row", "position_head"),
        )
    }
    types = floats | sizes | strides | {"match": "*i32", "positions": "*i64"}
    plain = {"lengths": None, "key_dim_stride": 1, "query_dim_stride": 1, "widen": False}
    for dtype, name in _NAMES.items():
        for dim in (64, 128):
            if (name, dim) == ("fp16", 64):
                continue  # as bf16
            by = rkv.tiles(dtype, dim)
            sides = {"keys": f"*{name}", "queries": f"*{name}"}
            blocks = {"block_t": by.queries, "block_n": by.entries, "block_i": by.entries}
            blocks |= {"block_m": by.rows, "block_d": by.dim, "group": 7}
            blocks |= {"head_dim": dim, "part": by.part}
            for causal in (False, True):
                if causal and (name, dim) != ("bf16", 128):
                    continue  # the mask is a detail: once is enough
                known = {**plain, **blocks, "causal": causal}
                known |= {} if causal else {"positions": None}
                variant = f"{name}, head_dim {dim}" + (", causal" if causal else "")
                for function in (_rkv.prepare_kernel, _rkv.terms_kernel):
                    yield _case(function, variant, types | sides, known, by.warps)
            known = {**plain, **blocks, "block_n": by.columns}
            yield _case(
                _matches.match_kernel,
                f"{name}, head_dim {dim}",
                types | sides,
                known,
                by.search_warps,
            )
    yield _case(_rkv.finish_kernel, "", types, {**plain, "block": rkv.FINISH}, 4)
    counts = dict.fromkeys(("count", "width", "vocab", "parts"), "i32")
    counts |= dict.fromkeys(("pair_stride", "slot_stride", "kept_stride", "row_stride"), "i32")
    counts |= {"entry_stride": "i32", "kept": "*i64", "source": "*i64", "target": "*i64"}
    for name in ("fp32", "bf16"):
        known = {"tile": compaction.TILE, "block": compaction.BLOCK}
        for function in (_compaction.compact_kernel, _compaction.move_kernel):
            yield _case(function, name, {**counts, "values": f"*{name}"}, known, 4)
    outs = {f"out_{of}": "*fp32" for of in ("largest", "normaliser", "entropy")}
    for name in ("fp32", "bf16"):
        known = {"span": vocabulary.SPAN, "block": vocabulary.BLOCK}
        types = {**floats, **counts, "logits": f"*{name}"}
        yield _case(_vocabulary.statistics_kernel, name, types, known, 8)
    yield _case(_vocabulary.combine_kernel, "", {**floats, **counts, **outs}, {"block": 16}, 1)


def _case(
    function: Any, variant: str, types: Mapping[str, str], constants: Mapping[str, Any], warps: int
) -> Case:
    names = function.arg_names
    known = {name: constants[name] for name in names if name in constants}
    return Case(
        function.__name__.removesuffix("_kernel"),
        variant,
        function,
        {name: types[name] for name in names if name not in known},
        known,
        warps,
    )


CASES: Final = [] if interpreted() else list(_cases())
"""All kernels, with the types and tiles that are used; empty where kernels are interpreted."""


def measure(case: Case, architecture: int) -> Resources:
    """Compile to machine code for an architecture; no GPU is needed.

    Raises:
        ConfigError: kernels are interpreted in this process.
    """
    if interpreted():
        raise ConfigError("TRITON_INTERPRET=1: interpreted kernels are not compiled; unset it")
    signature = {name: case.types.get(name, "constexpr") for name in case.function.arg_names}
    # As at a launch: tensors and the strides of rows are aligned to 16.
    aligned = [["tt.divisibility", 16]]
    attributes = {
        (place,): aligned
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith("_stride")
    }
    source = ASTSource(case.function, signature, dict(case.constants), attributes)
    target = GPUTarget("cuda", architecture, 32)
    made = triton.compile(source, target=target, options={"num_warps": case.warps})
    cubin = made.asm["cubin"]
    registers, stack = _dumped(cubin)
    return Resources(case, architecture, registers, stack, made.metadata.shared, len(cubin))


def _dumped(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack per thread, as NVIDIA's dumper tells them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    if found is None:
        raise ConfigError(f"cuobjdump told no registers: {told[:200]!r}")
    return int(found[1]), int(found[2])


def table() -> str:
    """Markdown: a line per case, registers and bytes of stack on every architecture."""
    heads = [f"sm_{a}: registers, stack" for a in ARCHITECTURES]
    lines = [
        "| " + " | ".join(["kernel", "for", "shared memory", *heads]) + " |",
        "|---" * (3 + len(heads)) + "|",
    ]
    for case in CASES:
        found = [measure(case, architecture) for architecture in ARCHITECTURES]
        shared = " / ".join(dict.fromkeys(f"{r.shared / 1024:.1f}" for r in found))
        cells = [f"{r.registers}, {r.stack}" for r in found]
        lines.append(
            "| " + " | ".join([case.kernel, case.variant or "all", f"{shared} KiB", *cells]) + " |"
        )
    return "\n".join(lines)

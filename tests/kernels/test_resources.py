"""Kernels become machine code for sm_80 and sm_90, without a GPU, and do not spill registers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvrescue.errors import ConfigError
from kvrescue.kernels import resources

CODE = """
import json, sys
from kvrescue.kernels import resources
for case in resources.CASES:
    for architecture in resources.ARCHITECTURES:
        found = resources.measure(case, architecture)
        print(json.dumps([case.kernel, case.variant, architecture, found.registers, found.stack,
                          found.shared, found.size]))
"""
MOST_SHARED = 99 << 10
"""Bytes of shared memory that a program may have on GPUs from compute capability 8.0 to 9.0."""


@pytest.fixture(scope="module")
def compiled() -> list[Any]:
    """In a process that does not interpret kernels."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    ended = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, check=True
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_every_kernel_compiles_without_spills(compiled: list[Any]) -> None:
    names = {name for name, *_ in compiled}
    files = [
        resources._rkv,
        resources._matches,
        resources._compaction,
        resources._vocabulary,
    ]
    assert names == {
        match
        for file in files
        for match in re.findall(r"^def (\w+)_kernel\(", Path(file.__file__).read_text(), re.M)
    }
    assert {architecture for _, _, architecture, *_ in compiled} == {80, 90}
    for name, variant, architecture, registers, stack, shared, size in compiled:
        case = f"{name} ({variant}), sm_{architecture}"
        assert stack == 0, case
        assert 0 < registers <= 255, case
        assert shared <= MOST_SHARED, case
        assert size > 1000, case


def test_interpreted_kernels_are_not_compiled() -> None:
    case = resources.Case("", "", None, {}, {}, 4)
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        resources.measure(case, 80)

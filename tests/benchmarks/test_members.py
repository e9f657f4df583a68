"""Every member of the torch engine runs, in its smallest size, and says what its numbers mean."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.members import MEMBERS, Member
from benchmarks.ratios import Size

ROOT = Path(__file__).parents[2]
TORCH = [m for m in MEMBERS.values() if m.needs == "torch"]


@pytest.mark.slow
@pytest.mark.parametrize("member", TORCH, ids=lambda m: m.name)
def test_it_runs(member: Member) -> None:
    found = importlib.import_module(member.module).ratios(Size.SMOKE)
    assert found
    names = [ratio.name for ratio in found]
    assert len(names) == len(set(names))
    for ratio in found:
        assert ratio.means.endswith(".")
        assert ratio.means_not.endswith(".")
        assert "|" not in ratio.name  # it stands in a table
        if ratio.goal and ratio.goal.relation == "exactly":
            assert ratio.reached, ratio.by_turn  # no matter of time, so it holds in any size


@pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.name)
def test_its_module_has_what_the_suite_calls(member: Member) -> None:
    source = ROOT.joinpath(*member.module.split(".")).with_suffix(".py").read_text()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    (ratios,) = [f for f in functions if f.name == "ratios"]
    assert [a.arg for a in ratios.args.args] == ["size"]


def test_listing_loads_no_framework() -> None:
    code = (
        "import sys, benchmarks.suite; "
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stderr

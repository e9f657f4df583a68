"""Every built-in component keeps the laws that its kind has; none can be forgotten."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kvrescue.detectors import Detector
from kvrescue.evictors import Evictor
from kvrescue.plugins import Plugins
from kvrescue.registry import KINDS
from kvrescue.testing import LAWS, check_detector, check_evictor
from tests.kit.matrix import DETECTORS, ELSEWHERE, EVICTORS, POLICIES, RECORDED, SCORERS

torch.set_num_threads(1)

MATRIX: dict[str, Mapping[str, Any]] = {
    "policy": POLICIES,
    "evictor": EVICTORS,
    "detector": DETECTORS,
    "scorer": SCORERS,
}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", KINDS)
def test_every_built_in_enters_the_kit(kind: str) -> None:
    here = {name.partition(",")[0] for name in MATRIX[kind]}
    there = {name for name, file in ELSEWHERE.items() if f"check_{kind}(" in _read(file)}
    recorded = {name for name, file in RECORDED.items() if "replay" in _read(file)}
    names = Plugins().registry.names(kind)  # type: ignore[arg-type]
    assert set(names) - there - recorded == here


def _read(file: str) -> str:
    return (ROOT / file).read_text()


@pytest.mark.parametrize("evictor", EVICTORS.values(), ids=EVICTORS)
def test_evictors(evictor: Evictor) -> None:
    check_evictor(evictor, examples=40)


@pytest.mark.parametrize("detector", DETECTORS.values(), ids=DETECTORS)
def test_detectors(detector: Detector) -> None:
    check_detector(detector, examples=60)


@pytest.mark.parametrize("check", SCORERS.values(), ids=SCORERS)
def test_scorers(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("check", POLICIES.values(), ids=POLICIES)
def test_policies(check: Callable[[], None]) -> None:
    check()


def test_importing_the_kit_imports_no_torch() -> None:
    code = (
        "import sys; from kvrescue.testing import check_detector, check_policy, check_selector;"
        "from kvrescue.detectors import EntropyDetector; from kvrescue.testing.fakes import *;"
        "check_detector(EntropyDetector(), examples=1); check_policy(FakePolicy(), examples=1);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_hypothesis_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from kvrescue.errors import DependencyError\n"
        "try: import kvrescue.testing\n"
        "except DependencyError as error: sys.exit('kvrescue[testing]' not in str(error))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_laws_have_names_of_their_own_and_say_what_to_do() -> None:
    for laws in LAWS.values():
        assert len({law.name for law in laws}) == len(laws)
        for law in laws:
            for text in (law.rule, law.meaning, law.way_out):
                assert text.endswith((".", "`"))
                assert not text.startswith(" ")


MUTANTS = ("evictor", "detector", "scorer", "policy", "selector")


@pytest.mark.parametrize("kind", MUTANTS)
def test_every_law_catches_some_mutant(kind: str) -> None:
    text = _read(f"tests/kit/test_{kind}_mutants.py")
    for law in LAWS[kind]:
        unused = law.name == "options" and kind != "evictor"  # one piece of code for all of them
        assert unused or f'"{law.name}"' in text, law.name

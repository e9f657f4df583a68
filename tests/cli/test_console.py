"""Words of the output."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.cli.console import counted
from tests.cli.run import Ran

MANY = "tokens|steps|problems|settings|trajectories|evictions|candidates"
ONE_OF_MANY = re.compile(rf"(?<![\d.,])1 (?:[a-z]+ )?(?:{MANY})\b")


@given(st.integers(0, 10**6))
def test_one_is_not_many(number: int) -> None:
    assert counted(number, "step").endswith("s") is (number != 1)
    assert counted(number, "trajectory", "trajectories").endswith("ies") is (number != 1)
    assert int(counted(number, "step").split()[0].replace(",", "")) == number


def test_a_solution_of_one_step(config: str) -> None:
    shown = Ran("solve", "q", "--config", config, "--set", "limits.max_steps=1").stdout
    assert "(1 step, ended by" in shown
    assert not ONE_OF_MANY.search(shown)


@pytest.mark.parametrize("budget", ["1", "2"])
def test_costs_of_one_token(budget: str) -> None:
    shown = Ran(
        *("cost", "--length", "1", "--budget", budget, "--window", "0", "--alpha", "0"),
        *("--tokens", "1,1,1,1"),
    ).stdout
    assert "at 1 token of context" in shown
    assert not ONE_OF_MANY.search(shown)

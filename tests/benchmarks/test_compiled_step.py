"""The comparison with torch.compile, in its smallest size."""

from __future__ import annotations

import pytest

from benchmarks.compiled_step import measure


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it starts to compile
def test_it_compares_one_computation() -> None:
    """`eager` traces the step and compiles nothing, which would take half a minute."""
    (found,) = measure(models=("tiny/base",), rows=3, length=20, turns=2, backend="eager")
    assert set(found["ms"]) == {"engine", "static shapes", "compiled"}
    assert min(found["ms"].values()) > 0
    assert found["difference"] < 1e-4

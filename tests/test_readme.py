"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_the_composition_runs_and_solves(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    exec(compile(BLOCKS[0], "README.md", "exec"), scope)
    out = capsys.readouterr().out
    solution, problem = scope["solution"], scope["problem"]
    assert str(solution.answer) == str(problem.answer)  # type: ignore[attr-defined]
    assert "helper" in out
    assert solution.caches["base"].evictions > 0  # type: ignore[attr-defined]


def test_the_example_evictor_works_and_registers() -> None:
    import torch

    import kvrescue
    from kvrescue.evictors import KVSlice

    scope: dict[str, object] = {}
    exec(compile("".join(BLOCKS[1:]), "README.md", "exec"), scope)
    evictor = scope["LargestValues"](budget=1, window=1)  # type: ignore[operator]
    values = torch.tensor([1.0, 5.0, 2.0, 0.0]).view(1, 1, 4, 1)
    kept = evictor.select(KVSlice(values, torch.ones(1, 1, 1, 1), values=values))
    assert kept.tolist() == [[[1, 3]]]
    registered: list[str] = []
    scope["kvrescue_register_evictors"](lambda name, _: registered.append(name))  # type: ignore[operator]
    assert registered == ["largest_values"]
    assert kvrescue.__version__

"""docs/replay.md is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvrescue import hookspecs
from tests.cli.run import Ran

DOC = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()


def test_the_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", DOC, flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(block, "docs/replay.md", "exec"), scope)
    assert capsys.readouterr().out.startswith("same None 0\n")
    steps = [s.text for s in scope["solution"].steps]  # type: ignore[attr-defined]
    again = [s.text for s in scope["again"].steps]  # type: ignore[attr-defined]
    assert again == steps[: len(again)]
    # As in the console block, on the trace that Python has just written.
    assert "1 same, 0 changed, 0 diverged" in Ran("replay", "run.jsonl").stdout
    ran = Ran("replay", "run.jsonl", "--set", "proposers.base.detectors.ngram.min_span=8")
    assert ran.code == 0


def test_every_observer_hook_is_listed() -> None:
    told = set(re.findall(r"`(kvrescue_\w+)`", DOC))
    hooks = {name for name in vars(hookspecs) if name.startswith("kvrescue_")}
    assert told == {name for name in hooks if not name.startswith("kvrescue_register")}

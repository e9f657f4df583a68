"""Every block of README.md and of docs/ is run, or at least checked against what is there.

After a change of what commands print: `python -m tests.docs.test_blocks` writes outputs anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.docs_site.pages import ROOT
from tests.docs.blocks import (
    LANGUAGES,
    Block,
    blocks,
    check_command,
    commands,
    importable,
    is_quick,
    pages,
    parsed,
    run,
    run_command,
)

PAGES = pages()
BLOCKS = {page: found for page, text in PAGES.items() if (found := blocks(page, text))}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a page's files are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    if (ROOT / "examples").is_dir():  # commands are given from the root of a clone
        (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def the_readme_rescues(scope: dict[str, Any]) -> None:
    """The composition solves its problem although its cache was evicted; the example evictor keeps
    the largest values, and its hook registers it."""
    import torch

    from kvrescue.evictors import KVSlice

    assert str(scope["solution"].answer) == str(scope["problem"].answer)
    assert scope["solution"].caches["base"].evictions > 0
    values = torch.tensor([1.0, 5.0, 2.0, 0.0]).view(1, 1, 4, 1)
    evictor = scope["LargestValues"](budget=1, window=1)
    kept = evictor.select(KVSlice(values, torch.ones(1, 1, 1, 1), values=values))
    assert kept.tolist() == [[[1, 3]]]
    registered: list[str] = []
    scope["kvrescue_register_evictors"](lambda name, _: registered.append(name))
    assert registered == ["largest_values"]


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {"README.md": the_readme_rescues}


@pytest.mark.parametrize("page", BLOCKS)
def test_blocks(page: str, folder: Path) -> None:
    scope: dict[str, Any] = {"__name__": f"page_{Path(page).stem}"}
    with importable(folder):
        for block in BLOCKS[page]:
            try:
                run(block, scope)
            except (Exception, SystemExit) as error:
                error.add_note(f"in the block at {block.where}")
                raise
    CHECKS.get(page, lambda _: None)(scope)


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_overlooked(page: str) -> None:
    """As many as there are fences, each of a kind that is known here."""
    fences = re.findall(r"^ *(?:```|~~~)", PAGES[page], re.MULTILINE)
    assert len(fences) == 2 * len(BLOCKS.get(page, ()))
    assert {block.language for block in BLOCKS.get(page, ())} <= set(LANGUAGES)
    markers = PAGES[page].count("<!-- not run:")
    assert markers == sum(bool(block.why_not) for block in BLOCKS.get(page, ()))


class TestTheChecks:
    """They bite."""

    @pytest.mark.parametrize(
        "command",
        [
            "kvrescue solve --nope 1",
            "kvrescue nope",
            "kvrescue bench nope",
            'kvrescue solve --preset tiny "$(kvrescue nope)"',
            "kvrescue config | nope",
            "pip install 'kvrescue[nope]'",
            "make nope",
            "python -m kvrescue.nope",
            "nope",
        ],
    )
    def test_a_command_that_is_not_there(self, command: str) -> None:
        with pytest.raises(Exception, match=r"(?i)nope"):
            check_command(command)

    @pytest.mark.parametrize(
        ("language", "text"),
        [
            ("python", "x = 1 +"),
            ("python", "assert False"),
            ("yaml", "limits: {max_stepz: 3}"),
            ("yaml", "nope: 1"),
            ("yaml", "policy: {evictor: {kind: nope}}"),
            ("console", "$ kvrescue config --preset nope\n"),
            ("console", "$ kvrescue problem\nsomething else\n"),
        ],
    )
    def test_a_block_that_is_wrong(self, language: str, text: str, folder: Path) -> None:
        with pytest.raises((Exception, SystemExit)):
            run(Block("page", 1, language, text, "", ""), {})

    def test_the_commands_are_told_apart(self) -> None:
        assert parsed(["plugins", "show", "evictor", "rkv"]) == "plugins show"
        assert parsed(["plugins"]) == "plugins"
        assert is_quick("kvrescue cost | tail -3")
        assert not is_quick("kvrescue demo --quick")
        assert not is_quick("kvrescue solve --preset smollm2 why")


def main() -> None:
    """Write the outputs of commands anew."""
    os.environ |= {"COLUMNS": "120", "NO_COLOR": "1"}
    for page, found in BLOCKS.items():
        text = PAGES[page]
        for block in found:
            for command, output in commands(block.text) if block.language == "console" else ():
                if output and is_quick(command):
                    text = text.replace(
                        f"{command}\n{output}", f"{command}\n{run_command(command)}"
                    )
        if text != PAGES[page]:
            Path(page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

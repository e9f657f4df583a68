"""docs/cost.md shows what the commands print, and what does not come out is what it says.

After a change: `python -m tests.cli.test_cost_docs` writes the outputs anew.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvrescue.evaluation.paper.check import check_paper
from tests.cli.run import Ran

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"
BLOCK = re.compile(r"```console\n\$ (kvrescue [^\n]*)\n(.*?)```", flags=re.DOTALL)


def printed(command: str) -> str:
    """What a command prints, without spaces at the ends of lines."""
    command, _, tail = command.partition(" | tail -")
    ran = Ran(*shlex.split(command)[1:])
    assert ran.code == 0, ran.stderr
    lines = [line.rstrip() for line in ran.stdout.splitlines()]
    return "".join(f"{line}\n" for line in lines[-int(tail) if tail else 0 :])


BLOCKS = BLOCK.findall(PAGE.read_text())


def test_there_are_outputs() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize(("command", "output"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_outputs(command: str, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert printed(command) == output


def test_claims_that_do_not_come_out_are_all_listed() -> None:
    rows = re.findall(r"^\| (?!claim|---)(.*?) \|", PAGE.read_text(), flags=re.MULTILINE)
    assert len(rows) == sum(claim.agrees is False for claim in check_paper())


def test_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(compile(code, "docs/cost.md", "exec"), {})
    assert capsys.readouterr().out.startswith("4.1025")


if __name__ == "__main__":
    PAGE.write_text(
        BLOCK.sub(lambda m: f"```console\n$ {m[1]}\n{printed(m[1])}```", PAGE.read_text())
    )

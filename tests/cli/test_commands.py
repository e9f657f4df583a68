"""What the commands print when all is well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import kvrescue
from kvrescue.cli.reference import reference
from kvrescue.evaluation.bill import bills
from kvrescue.events import from_dict, solution_from_dict
from tests.cli.oracle import parse
from tests.cli.run import Ran

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def test_version() -> None:
    assert Ran("--version").stdout == f"kvrescue {kvrescue.__version__}\n"


def test_docs_are_up_to_date() -> None:
    assert DOCS.read_text() == reference(), "run: python -m kvrescue.cli.reference > docs/cli.md"


class TestSolve:
    def test_the_question_is_the_same_wherever_it_comes_from(
        self, config: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "question.txt"
        file.write_text("how many?\n")
        runs = [
            Ran("solve", "how many?", "--config", config, "--json"),
            Ran("solve", "--file", str(file), "--config", config, "--json"),
            Ran("solve", "-", "--config", config, "--json", stdin="how many?\n"),
            Ran("solve", "--config", config, "--json", stdin="how many?"),
        ]
        assert len({run.stdout for run in runs}) == 1
        solution = solution_from_dict(runs[0].json)
        assert solution.question.text == "how many?"
        assert solution.steps

    def test_view(self, config: str) -> None:
        ran = Ran("solve", "how many?", "--config", config, "--seed", "3")
        assert ran.code == 0
        solution = solution_from_dict(
            Ran("solve", "how many?", "--config", config, "--seed", "3", "--json").json
        )
        assert "how many?" in ran.stdout
        assert "aborted by fake: flagged" in ran.stdout
        assert f"({len(solution.steps)} steps, ended by {solution.stop.value}, seed 3)" in (
            ran.stdout
        )
        assert "tokens generated" in ran.stdout
        assert "entries held" in ran.stdout
        assert ran.stderr == ""

    def test_no_markup_in_what_models_write(self, config: str) -> None:
        ran = Ran(
            "solve",
            "[red]how[/red] many?",
            "--config",
            config,
            "--set",
            'proposers.base.policy.words=["[/bold] \\u001b[31m x\\n\\n"]',
            "--set",
            "proposers.helper.policy.words=[y]",
        )
        assert ran.code == 0
        assert "[red]how[/red] many?" in ran.stdout
        assert "[/bold]" in ran.stdout
        assert "\x1b" not in ran.stdout

    def test_seed(self, config: str) -> None:
        seeds = [Ran("solve", "q", "--config", config, "--seed", s, "--json") for s in "778"]
        assert seeds[0].stdout == seeds[1].stdout != seeds[2].stdout

    def test_trace(self, config: str, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        ran = Ran("solve", "q", "--config", config, "--trace", str(path), "--json")
        events = [from_dict(json.loads(line)) for line in path.read_text().splitlines()]
        assert events[-1].solution == solution_from_dict(ran.json)  # type: ignore[union-attr]


class TestProblem:
    def test_question(self) -> None:
        bill = bills("test", 5, 3)[2]
        assert Ran("problem", "-i", "2", "--seed", "5").stdout == bill.question + "\n"
        lines = Ran("problem", "-i", "2", "--seed", "5", "--answer").stdout.splitlines()
        assert lines == [bill.question, str(bill.answer)]
        assert parse(bill.question) == bill

    def test_json(self) -> None:
        data = Ran("problem", "--json").json
        assert data["answer"] == str(bills("test", 0, 1)[0].answer)


class TestConfig:
    def test_resolved_yaml_loads_again(self, config: str, tmp_path: Path) -> None:
        first = Ran("config", "--config", config, "--set", "seed=9").stdout
        again = tmp_path / "again.yaml"
        again.write_text(first)
        assert Ran("config", "--config", str(again)).stdout == first
        assert yaml.safe_load(first)["seed"] == 9

    def test_json(self, config: str) -> None:
        data = Ran("config", "--config", config, "--json").json
        assert data["config"]["proposers"]["base"]["candidates"] == 2
        assert len(data["hash"]) == 16

    def test_every_preset_resolves(self) -> None:
        from kvrescue import presets

        for name in presets.names():
            assert Ran("config", "--preset", name).code == 0


class TestPlugins:
    def test_list(self) -> None:
        ran = Ran("plugins", "--plugin", "tests.cli.parts")
        assert "builtins" in ran.stdout
        assert "kvrescue_register_detectors" in ran.stdout
        data = {info["name"]: info for info in Ran("plugins", "--json").json}
        assert "gzip" in data["builtins"]["components"]["detector"]
        assert data["builtins"]["origin"] == "builtin"

    @pytest.mark.parametrize(
        ("kind", "name", "option"),
        [
            ("detector", "gzip", "threshold"),
            ("evictor", "rkv", "budget"),
            ("policy", "torch", "max_context"),
            ("scorer", "qwen_prm", "convention"),
        ],
    )
    def test_show(self, kind: str, name: str, option: str) -> None:
        ran = Ran("plugins", "show", kind, name)
        assert ran.code == 0
        assert option in ran.stdout
        data = Ran("plugins", "show", kind, name, "--json").json
        assert option in data["schema"]["properties"]
        assert data["plugin"] == "builtins"
